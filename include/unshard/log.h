// Lines for a person, on stderr, from rank 0.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

namespace unshard {

enum class Verbosity : std::uint8_t { quiet, normal, verbose };

class Log {
 public:
  virtual ~Log() = default;
  virtual void line(const std::string& text) = 0;     ///< what happens and what was found
  virtual void warning(const std::string& text) = 0;  ///< shown unless quiet; prefixed `warning: `
  virtual void detail(const std::string& text) = 0;   ///< with --verbose only
  virtual void data(const std::string& text) = 0;     ///< to stdout: what was asked for as data
  /// Progress of a step of `total` bytes: a bar with bytes/s and ETA on a terminal, a sparse line elsewhere.
  virtual void begin_progress(const std::string& what, std::uint64_t total_bytes) = 0;
  virtual void add_progress(std::uint64_t bytes) = 0;
  virtual void end_progress() = 0;
};

/// `rank` other than 0 prints nothing. Local.
[[nodiscard]] std::unique_ptr<Log> make_log(int rank, Verbosity verbosity);

}  // namespace unshard
