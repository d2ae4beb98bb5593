// Where the bytes of a wave go: one file that the rank writes together with others, or files that it writes alone.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "move_state.h"
#include "rank_places.h"
#include "workers.h"

namespace unshard {

/// Local, pure; the same on every rank. Whether the ranks of a group write its file by collective calls.
[[nodiscard]] bool writes_collectively(const Group& group, const RankPlaces& places, IoMode io);

/// The output of one wave. Errors are kept in the MoveState, but for those of write_alone(), which throws.
class WaveOutput {
 public:
  /// Collective over all ranks. `buffer_bytes`: of a buffer for reading back.
  WaveOutput(MoveState& state, std::uint32_t wave, std::uint64_t buffer_bytes);
  ~WaveOutput() { ends_ = true; }  ///< after a failure or a signal: what is not settled stays so
  WaveOutput(const WaveOutput&) = delete;
  WaveOutput& operator=(const WaveOutput&) = delete;

  /// Whether this rank writes together with others: then it calls write_together() in every round, and never write_alone().
  [[nodiscard]] bool is_collective() const { return collective_; }

  /// Collective over the group. `data` is empty for a rank that has nothing to write.
  void write_together(std::uint64_t position, std::span<const std::byte> data);

  /// Local. Thread-safe. Writes the bytes of `piece`; settles what was written before, with `buffer` (settle.h).
  void write_alone(const Extent& piece, std::span<const std::byte> data, std::span<std::byte> buffer);

  /// Local. For the main thread, with pieces that were written together, once every rank of the group has returned from those calls: a
  /// thread of its own settles what was written before them, while the ranks go on; in a round they all would wait for the device.
  /// Waits for that thread when it has fallen behind.
  void settle_behind(const std::vector<Extent>& pieces);

  /// Local. For the main thread: returns when that thread has ended its work.
  void finish_settling();

  /// Collective over the group.
  void close();

 private:
  [[nodiscard]] std::shared_ptr<File> open(std::uint32_t file);
  void note_written(std::uint64_t bytes);
  void start_settling();
  void settle(const std::vector<Extent>& pieces);

  MoveState& state_;
  bool collective_ = false;
  std::unique_ptr<Comm> group_comm_;
  std::unique_ptr<SharedFile> shared_;
  std::mutex mutex_;
  std::shared_ptr<File> file_;  ///< steps are in order of files; with a shared file, the same one
  std::uint32_t file_number_ = 0;
  std::vector<Extent> to_settle_;
  std::uint64_t to_settle_bytes_ = 0;
  Bytes settling_buffer_;  ///< of the thread
  std::atomic<bool> ends_ = false;
  std::optional<Workers> settling_;  ///< one thread; empty where there may be no more threads. Last, so that it ends first
};

}  // namespace unshard
