#include "direct.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <utility>

#include "crc32c.h"
#include "workers.h"
#include "write_out.h"

namespace unshard {
namespace {

/// Hands out the rank's runs piece by piece, in order. Thread-safe.
class PieceQueue {
 public:
  PieceQueue(MoveState& state, const PieceSizes& sizes)
      : state_(state), runs_(state.plan.runs[static_cast<std::size_t>(state.comm.rank())]), sizes_(sizes) {}

  struct Item {
    OutputPiece piece;
    std::shared_ptr<File> file;  ///< closed when its last piece is settled
  };

  std::optional<Item> next() {
    const std::lock_guard lock(mutex_);
    if (stopped_ || run_ == runs_.size()) return std::nullopt;
    const Run& run = runs_[run_];
    position_ = std::max(position_, run.begin);
    if (!file_ || file_number_ != run.file) {
      file_ = state_.target_files.open_for_writing(state_.path_of(run.file), false);
      file_number_ = run.file;
    }
    const std::uint64_t end = std::min(run.end, state_.book.end_of(run.file, position_));
    Item item{next_piece(state_.assembler, run.file, position_, end, sizes_), file_};
    position_ = item.piece.end;
    if (position_ == run.end) {
      ++run_;
      position_ = 0;
    }
    return item;
  }

  /// And closes the file, once those that were handed out are gone.
  void stop() {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
    file_.reset();
  }

  [[nodiscard]] bool is_stopped() {
    const std::lock_guard lock(mutex_);
    return stopped_;
  }

 private:
  MoveState& state_;
  const std::vector<Run>& runs_;
  PieceSizes sizes_;
  std::mutex mutex_;
  bool stopped_ = false;
  std::size_t run_ = 0;
  std::uint64_t position_ = 0;  ///< of the current run; 0: at its begin
  std::shared_ptr<File> file_;
  std::uint32_t file_number_ = 0;
};

/// Stops the queue at the end of its life.
class Stopping {
 public:
  explicit Stopping(PieceQueue& queue) : queue_(queue) {}
  Stopping(const Stopping&) = delete;
  Stopping& operator=(const Stopping&) = delete;
  ~Stopping() { queue_.stop(); }

 private:
  PieceQueue& queue_;
};

/// One I/O thread: makes and writes pieces until there are none left.
class PieceWriter {
 public:
  PieceWriter(MoveState& state, std::uint64_t scratch_bytes) : state_(state) { buffers_.scratch.resize(scratch_bytes); }

  void write(const PieceQueue::Item& item) {
    const OutputPiece& piece = item.piece;
    const std::uint64_t bytes = piece.end - piece.begin;
    if (output_.size() < bytes) output_.resize(bytes);
    const std::span<std::byte> output = std::span(output_).first(bytes);
    {
      const Stopwatch watch(state_.counters.read_ns);
      state_.counters.read_bytes += make_piece(state_.sources, piece, output, buffers_).bytes;
    }
    const std::uint32_t checksum = crc32c(output);
    {
      const Stopwatch watch(state_.counters.write_ns);
      write_out(*item.file, piece.begin, output);
    }
    const Extent written{piece.file, piece.begin, piece.end, checksum};
    state_.book.add(written.file, written.begin, written.end, checksum);
    if (state_.options.written) state_.options.written(written);
    state_.settler.add(item.file, written, buffers_.scratch);
    state_.counters.written_bytes += bytes;
    state_.counters.not_reported_bytes += bytes;
  }

  /// After the last piece.
  void finish() { state_.settler.finish(buffers_.scratch); }

 private:
  MoveState& state_;
  Buffers buffers_;
  std::vector<std::byte> output_;
};

}  // namespace

void move_directly(MoveState& state) {
  constexpr std::chrono::milliseconds between_comparisons(100);
  const Budget budget = direct_budget(state.options.buffer_bytes, state.options.threads, state.work);
  PieceQueue queue(state, budget.piece);
  Workers workers(budget.threads);
  const Stopping at_end(queue);  // before the workers are waited for, also when comparing fails
  workers.start(budget.threads, [&](std::size_t, std::size_t) {
    try {
      PieceWriter writer(state, budget.scratch_bytes);
      while (const std::optional<PieceQueue::Item> item = queue.next()) writer.write(*item);
      if (!queue.is_stopped()) writer.finish();
    } catch (...) {
      queue.stop();
      throw;
    }
  });
  Common common;
  while (!common.all_done && !common.must_stop) {
    const bool ended = workers.wait_for(between_comparisons);
    if (ended) state.keep(workers.wait());
    common = compare_standing(state, state.error ? Standing::failed : ended ? Standing::done : Standing::working);
  }
  queue.stop();
  state.keep(workers.wait());
  state.busy_ns += workers.busy_ns();
  agree_on_end(state, common.signal);
}

}  // namespace unshard
