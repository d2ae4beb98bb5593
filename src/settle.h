// What follows the writing: a piece is read back, waited for until it is on the device, and dropped from the page cache, once enough
// others were written; by the thread that has written those, or by one of its own (wave_output.h). So the pages of the output are a few that
// are used again and again: memory that was never touched, or was given back to the host of a virtual machine, costs more than the copying
// (measured: 1.9 s instead of 5.0 s for 3.1 GB).
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "unshard/file_system.h"
#include "unshard/move.h"

namespace unshard {

/// All functions are Local and thread-safe, and throw Error(verification) naming a piece that is not what was written, or Error(io) when
/// the device refused it.
class Settler {
 public:
  /// `reads_back`: pieces are compared with their checksums before they are dropped. `trail_bytes`: as in MoveOptions.
  explicit Settler(bool reads_back, std::uint64_t trail_bytes = MoveOptions().trail_bytes)
      : reads_back_(reads_back), trail_bytes_(trail_bytes) {}

  /// Notes a piece that was written through `file`. Settles the oldest ones when there are too many, or of too many files (they stay open).
  /// `buffer` is used for reading.
  void add(std::shared_ptr<File> file, const Extent& piece, std::span<std::byte> buffer);

  /// Settles what is left; several threads may share this.
  void finish(std::span<std::byte> buffer);

  /// After a failure or a signal: forgets what is left, and closes its files.
  void forget();

 private:
  static constexpr std::size_t most_files = 32;
  struct Written {
    std::shared_ptr<File> file;
    Extent piece;
  };
  [[nodiscard]] bool is_too_long() const { return waiting_bytes_ > trail_bytes_ || waiting_files_ > most_files; }
  [[nodiscard]] std::vector<Written> take();
  void settle(const std::vector<Written>& batch, std::span<std::byte> buffer) const;

  bool reads_back_;
  std::uint64_t trail_bytes_;
  std::mutex mutex_;
  std::deque<Written> waiting_;      ///< in the order of writing
  std::uint64_t waiting_bytes_ = 0;  ///< of these
  std::size_t waiting_files_ = 0;    ///< how often the file changes in them, and 1
};

}  // namespace unshard
