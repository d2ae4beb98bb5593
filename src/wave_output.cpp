#include "wave_output.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <system_error>
#include <utility>

#include "unshard/agree.h"
#include "write_out.h"

namespace unshard {
namespace {

/// So much waits for the thread that settles before the rank waits for it.
constexpr std::uint64_t most_unsettled_bytes = std::uint64_t{16} << 20;

}  // namespace

bool writes_collectively(const Group& group, const RankPlaces& places, IoMode io) {
  if (group.ranks.size() < 2 || io == IoMode::posix) return false;
  if (io == IoMode::collective) return true;
  const auto node_of = [&](std::uint32_t rank) { return places.node_of(static_cast<int>(rank)); };
  return std::any_of(group.ranks.begin(), group.ranks.end(), [&](std::uint32_t rank) { return node_of(rank) != node_of(group.ranks[0]); });
}

WaveOutput::WaveOutput(MoveState& state, std::uint32_t wave, std::uint64_t buffer_bytes) : state_(state) {
  const auto rank = static_cast<std::uint32_t>(state.comm.rank());
  const RankPlaces places(state.comm);
  bool some_collective = false;
  int color = 0;  // of ranks that write alone
  std::optional<std::uint32_t> file;
  for (std::size_t g = 0; g < state.plan.groups.size(); ++g) {
    const Group& group = state.plan.groups[g];
    if (group.wave != wave || !writes_collectively(group, places, state.options.io)) continue;
    some_collective = true;
    if (!std::binary_search(group.ranks.begin(), group.ranks.end(), rank)) continue;
    color = static_cast<int>(g) + 1;
    file = group.file;
  }
  if (!some_collective) return;
  group_comm_ = state.comm.split(color);
  if (!file) return;
  collective_ = true;
  const std::optional<Error> failure = attempt([&] { shared_ = group_comm_->open_shared(state.path_of(*file), state.options.mpi_hints); });
  if (failure && failure->code() == ErrorCode::mpi) throw Error(*failure);  // perhaps of this rank alone: the others will write together
  state.keep(failure);
  if (!shared_) return;
  state.keep(attempt([&] {
    file_ = open(*file);
    settling_buffer_.resize(buffer_bytes);
    try {
      settling_.emplace(1, Workers::Wakes::last);
    } catch (const std::system_error&) {  // a limit on threads: the main thread does the work
    }
  }));
}

void WaveOutput::write_together(std::uint64_t position, std::span<const std::byte> data) {
  if (!shared_) return;  // opening it has failed for the whole group
  const Stopwatch watch(state_.counters.write_ns);
  state_.keep(attempt([&] {
    shared_->write_at_all(position, data);
    note_written(data.size());
  }));
}

void WaveOutput::write_alone(const Extent& piece, std::span<const std::byte> data, std::span<std::byte> buffer) {
  const std::shared_ptr<File> file = open(piece.file);
  {
    const Stopwatch watch(state_.counters.write_ns);
    write_out(*file, piece.begin, data);
  }
  note_written(data.size());
  state_.settler.add(file, piece, buffer);
}

void WaveOutput::settle_behind(const std::vector<Extent>& pieces) {
  if (state_.error) return;
  for (const Extent& piece : pieces) to_settle_bytes_ += piece.end - piece.begin;
  to_settle_.insert(to_settle_.end(), pieces.begin(), pieces.end());
  const bool is_free = !settling_ || settling_->wait_for(std::chrono::milliseconds(0));
  if (is_free || to_settle_bytes_ >= most_unsettled_bytes) start_settling();
}

void WaveOutput::finish_settling() {
  if (!collective_ || state_.error) return;
  start_settling();
  if (settling_) state_.keep(settling_->wait());
}

/// Waits for the thread, and gives it what there is by now.
void WaveOutput::start_settling() {
  if (settling_) state_.keep(settling_->wait());
  if (state_.error || to_settle_.empty()) return;
  to_settle_bytes_ = 0;
  const std::vector<Extent> pieces = std::exchange(to_settle_, {});
  if (settling_)
    settling_->start(1, [this, pieces](std::size_t, std::size_t) { settle(pieces); });
  else
    state_.keep(attempt([&] { settle(pieces); }));
}

void WaveOutput::settle(const std::vector<Extent>& pieces) {
  for (const Extent& piece : pieces) file_->start_writeback(piece.begin, piece.end - piece.begin);  // MPI has no word for it
  for (auto piece = pieces.begin(); piece != pieces.end() && !ends_; ++piece) state_.settler.add(file_, *piece, settling_buffer_);
}

void WaveOutput::close() {
  if (shared_) state_.keep(attempt([&] { shared_->close(); }));
}

std::shared_ptr<File> WaveOutput::open(std::uint32_t file) {
  const std::lock_guard lock(mutex_);
  if (!file_ || file_number_ != file) file_ = state_.target_files.open_for_writing(state_.path_of(file), false);
  file_number_ = file;
  return file_;
}

void WaveOutput::note_written(std::uint64_t bytes) {
  state_.counters.written_bytes += bytes;
  state_.counters.not_reported_bytes += bytes;
}

}  // namespace unshard
