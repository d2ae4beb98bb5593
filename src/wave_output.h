// Where the bytes of a wave go: one file that the rank writes together with others, or files that it writes alone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>

#include "move_state.h"
#include "rank_places.h"

namespace unshard {

/// Local, pure; the same on every rank. Whether the ranks of a group write its file by collective calls.
[[nodiscard]] bool writes_collectively(const Group& group, const RankPlaces& places, IoMode io);

/// The output of one wave. Errors are kept in the MoveState, but for those of write_alone() and settle(), which throw.
class WaveOutput {
 public:
  /// Collective over all ranks.
  WaveOutput(MoveState& state, std::uint32_t wave);

  /// Whether this rank writes together with others: then it calls write_together() in every round, and never write_alone().
  [[nodiscard]] bool is_collective() const { return collective_; }

  /// Collective over the group. `data` is empty for a rank that has nothing to write.
  void write_together(std::uint64_t position, std::span<const std::byte> data);

  /// Local. Thread-safe. Writes the bytes of `piece`; settles what was written before, with `buffer` (settle.h).
  void write_alone(const Extent& piece, std::span<const std::byte> data, std::span<std::byte> buffer);

  /// Local. Thread-safe. To be called for a piece that was written together, once every rank of the group has returned from that call:
  /// settles what was written before, with `buffer`.
  void settle(const Extent& piece, std::span<std::byte> buffer);

  /// Collective over the group.
  void close();

 private:
  [[nodiscard]] std::shared_ptr<File> open(std::uint32_t file);
  void note_written(std::uint64_t bytes);

  MoveState& state_;
  bool collective_ = false;
  std::unique_ptr<Comm> group_comm_;
  std::unique_ptr<SharedFile> shared_;
  std::mutex mutex_;
  std::shared_ptr<File> file_;  ///< steps are in order of files; with a shared file, the same one
  std::uint32_t file_number_ = 0;
};

}  // namespace unshard
