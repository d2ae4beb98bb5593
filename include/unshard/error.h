// One way to fail: local code throws Error; steps that involve ranks turn it into the same Error on every rank
// (see agree.h); main prints it as one line and returns its code.
#pragma once

#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace unshard {

/// The kind of a failure; the value is the exit code of the program. `128 + signal` stands for a signal.
enum class ErrorCode : int {
  internal = 1,      ///< a defect of the program
  usage = 2,         ///< options that do not fit together or the target folder
  bad_input = 3,     ///< missing, damaged or contradictory input
  unsupported = 4,   ///< sound input or option that this version can't handle
  io = 5,            ///< a system call failed
  no_space = 6,      ///< the target file system is full
  mpi = 7,           ///< the launcher or MPI failed
  verification = 8,  ///< bytes read back differ; or `test` found differences
};

/// The name of `code` in help and JSON ("bad_input"). Local.
std::string_view name_of(ErrorCode code);

/// What went wrong, in one line without the program's name: `<file or tensor>: <expected and actual>; <what to do>`.
class Error : public std::runtime_error {
 public:
  Error(ErrorCode code, const std::string& text, bool is_agreed = false) : std::runtime_error(text), code_(code), is_agreed_(is_agreed) {}
  [[nodiscard]] ErrorCode code() const { return code_; }
  /// Thrown by agree(): the text has the step and says which rank it was.
  [[nodiscard]] bool is_agreed() const { return is_agreed_; }

 private:
  ErrorCode code_;
  bool is_agreed_;
};

/// `text` with control characters, quotes' escapes and invalid UTF-8 made visible (`\x1b`), cut to `limit` bytes, so that
/// names from untrusted files can be printed on a terminal. Local.
[[nodiscard]] std::string printable(std::string_view text, std::size_t limit = 200);

/// Numbers as ranges: {0,1,2,5} gives `0-2, 5`; at most `most` ranges, then `and N more`. `numbers` is sorted. Local.
[[nodiscard]] std::string as_ranges(const std::vector<std::uint64_t>& numbers, std::size_t most = 16);

/// Names for a message: `a, b, c and 12 more`. Local.
[[nodiscard]] std::string name_list(const std::vector<std::string>& names, std::size_t most = 6);

/// `1 tensor`, `2 tensors`: a count and its noun for a message. Local.
[[nodiscard]] std::string counted(std::uint64_t count, std::string_view noun);

}  // namespace unshard
