// In round k a rank posts the messages of round k + 1, whose bytes its readers have read already, and only then enters the collective write of round k. While it is in
// there, its I/O threads read for round k + 2 what it will send, and what it needs itself for round k + 1. So no rank waits inside a collective call for a message
// that another rank still has to be asked for; with ROMIO and with ompio's vulcan and dynamic_gen2 that would be a deadlock.
#include "rounds.h"

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <utility>

#include "crc32c.h"
#include "exchange.h"
#include "home_readers.h"
#include "unshard/agree.h"
#include "workers.h"
#include "write_out.h"

namespace unshard {
namespace {

constexpr std::uint64_t local = ~std::uint64_t{0};

/// What this rank makes in one round.
struct Round {
  Run step;  ///< empty when it makes nothing
  struct Part {
    OutputPiece piece;
    std::vector<std::uint64_t> received_at;  ///< of each copy: where its dense bytes arrive, or `local`
  };
  std::vector<Part> parts;
  std::vector<std::uint64_t> incoming;  ///< bytes from each rank
};

/// The output of a wave: one file written together with others, or files written alone.
class WaveOutput {
 public:
  WaveOutput(MoveState& state, std::uint32_t wave) : state_(state) {
    const auto is_ours = [&](const Group& group) {
      const auto rank = static_cast<std::uint32_t>(state.comm.rank());
      return group.wave == wave && rank >= group.first_rank && rank - group.first_rank < group.rank_count;
    };
    bool some_collective = false;
    int color = 0;
    std::optional<std::uint32_t> file;
    for (std::size_t g = 0; g < state.plan.groups.size(); ++g) {
      const Group& group = state.plan.groups[g];
      if (group.wave != wave || !writes_collectively(group, state.comm, state.options.io)) continue;
      some_collective = true;
      if (!is_ours(group)) continue;
      color = static_cast<int>(g) + 1;
      file = group.file;
    }
    if (!some_collective) return;
    group_comm_ = state.comm.split(color);
    if (!file) return;
    collective_ = true;
    state.keep(attempt([&] { shared_ = group_comm_->open_shared(state.path_of(*file), state.options.mpi_hints); }));
  }

  [[nodiscard]] bool is_collective() const { return collective_; }

  /// Collective over the group. `data` is empty for a rank that has nothing to write.
  void write_together(std::uint64_t position, std::span<const std::byte> data) {
    if (!shared_) return;  // opening it has failed for the whole group
    const Stopwatch watch(state_.counters.write_ns);
    state_.keep(attempt([&] {
      shared_->write_at_all(position, data);
      note_written(data.size());
    }));
  }

  /// Thread-safe.
  void write_alone(std::uint32_t file, std::uint64_t position, std::span<const std::byte> data) {
    const Stopwatch watch(state_.counters.write_ns);
    write_out(*open(file), position, data);
    note_written(data.size());
  }

  /// Collective over the group.
  void close() {
    if (shared_) state_.keep(attempt([&] { shared_->close(); }));
  }

 private:
  std::shared_ptr<File> open(std::uint32_t file) {
    const std::lock_guard lock(mutex_);
    if (!file_ || file_number_ != file) file_ = state_.target_files.open_for_writing(state_.path_of(file), false);
    file_number_ = file;
    return file_;
  }

  void note_written(std::uint64_t bytes) {
    state_.counters.written_bytes += bytes;
    state_.counters.not_reported_bytes += bytes;
  }

  MoveState& state_;
  bool collective_ = false;
  std::unique_ptr<Comm> group_comm_;
  std::unique_ptr<SharedFile> shared_;
  std::mutex mutex_;
  std::shared_ptr<File> file_;  ///< steps are in order of files
  std::uint32_t file_number_ = 0;
};

/// The steps of one wave, and who reads what for them.
class WavePlan {
 public:
  WavePlan(MoveState& state, const Plan& plan, std::uint32_t wave, const std::vector<int>& readers, const Budget& budget)
      : state_(state), readers_(readers), budget_(budget) {
    steps_ = steps_of(plan, state.comm.rank(), wave);
    rounds_ = state.comm.reduce_all(steps_.size(), Reduction::max);
  }

  [[nodiscard]] std::uint64_t rounds() const { return rounds_; }

  [[nodiscard]] std::uint64_t largest_step() const {
    std::uint64_t largest = 0;
    for (const Run& step : steps_) largest = std::max(largest, step.end - step.begin);
    return largest;
  }

  /// Local, pure. What this rank makes in round `number`. The same after a failure: the messages of a round do not depend on it.
  [[nodiscard]] Round round(std::uint64_t number) const {
    Round round;
    round.incoming.assign(static_cast<std::size_t>(state_.comm.size()), 0);
    if (number >= steps_.size()) return round;
    round.step = steps_[number];
    for (std::uint64_t at = round.step.begin; at < round.step.end; at = round.parts.back().piece.end) {
      const std::uint64_t end = std::min(round.step.end, state_.book.end_of(round.step.file, at));
      round.parts.push_back({next_piece(state_.assembler, round.step.file, at, end, budget_.piece), {}});
    }
    place_messages(round);
    return round;
  }

  /// Local. The lists of all rounds for each reader.
  [[nodiscard]] std::vector<Bytes> wanted() const {
    std::vector<SliceListWriter> lists(static_cast<std::size_t>(state_.comm.size()));
    for (std::uint64_t number = 0; number < rounds_; ++number) {
      std::vector<std::vector<Slice>> slices(lists.size());
      for (const Round::Part& part : round(number).parts)
        for (std::size_t c = 0; c < part.piece.copies.size(); ++c)
          if (part.received_at[c] != local) slices[reader_of(part.piece.copies[c])].push_back(part.piece.copies[c].slice);
      for (std::size_t rank = 0; rank < lists.size(); ++rank) lists[rank].add_round(slices[rank]);
    }
    std::vector<Bytes> result;
    for (SliceListWriter& list : lists) result.push_back(list.take());
    return result;
  }

 private:
  [[nodiscard]] int reader_of(const Copy& copy) const { return readers_.empty() ? state_.comm.rank() : readers_[copy.slice.file]; }

  /// The messages of a round lie one after the other in the receive buffer, by sender.
  void place_messages(Round& round) const {
    for (const Round::Part& part : round.parts)
      for (const Copy& copy : part.piece.copies)
        if (reader_of(copy) != state_.comm.rank()) round.incoming[reader_of(copy)] += dense_bytes(copy.slice);
    std::vector<std::uint64_t> at(round.incoming.size(), 0);
    for (std::size_t rank = 1; rank < at.size(); ++rank) at[rank] = at[rank - 1] + round.incoming[rank - 1];
    for (Round::Part& part : round.parts) {
      for (const Copy& copy : part.piece.copies) {
        const bool is_local = reader_of(copy) == state_.comm.rank();
        part.received_at.push_back(is_local ? local : at[reader_of(copy)]);
        if (!is_local) at[reader_of(copy)] += dense_bytes(copy.slice);
      }
    }
  }

  MoveState& state_;
  const std::vector<int>& readers_;
  const Budget& budget_;
  std::vector<Run> steps_;
  std::uint64_t rounds_ = 0;
};

/// One wave under way.
class Wave {
 public:
  Wave(MoveState& state, std::uint32_t wave, const WavePlan& plan, Exchange& exchange, const Budget& budget, Workers& workers)
      : state_(state), plan_(plan), exchange_(exchange), workers_(workers), output_(state, wave), buffers_(workers.size()) {
    for (Buffers& buffers : buffers_) buffers.scratch.resize(budget.scratch_bytes);
    for (Bytes& made : made_) made.resize(plan.largest_step());
    rounds_between_comparisons_ = std::max<std::uint64_t>(1, compare_bytes / std::max<std::uint64_t>(state.plan.step_bytes, 1));
  }

  /// Collective. Returns the signal that ended it early, or 0.
  int run() {
    Outgoing ready = exchange_.next_round();
    read_for_others(ready, sent_[0]);
    Round written;
    Common common;
    // Each turn makes one round and writes the one before.
    for (std::uint64_t number = 0; number <= plan_.rounds() && !common.must_stop; ++number) {
      Round made;
      state_.keep(attempt([&] { made = plan_.round(number); }));
      made.incoming.resize(static_cast<std::size_t>(state_.comm.size()), 0);
      const std::vector<std::unique_ptr<Request>> messages = post(ready, sent_[number % 2], made);
      Outgoing next = exchange_.next_round();
      start_threads(made, made_[number % 2], next, sent_[(number + 1) % 2], written, made_[(number + 1) % 2]);
      if (output_.is_collective() && number > 0) write_together(written, made_[(number + 1) % 2]);
      state_.keep(workers_.wait());
      wait(messages);
      finish(made, made_[number % 2]);
      written = std::move(made);
      ready = std::move(next);
      state_.report_progress();
      if (number % rounds_between_comparisons_ == 0) common = compare_standing(state_, state_.error ? Standing::failed : Standing::working);
    }
    output_.close();
    return common.signal;
  }

 private:
  static constexpr std::uint64_t compare_bytes = std::uint64_t{32} << 20;

  static void grow(Bytes& buffer, std::uint64_t bytes) {
    if (buffer.size() < bytes) buffer.resize(bytes);
  }

  std::vector<std::unique_ptr<Request>> post(const Outgoing& outgoing, Bytes& sent, const Round& round) {
    std::uint64_t incoming = 0;
    for (const std::uint64_t bytes : round.incoming) incoming += bytes;
    grow(received_, incoming);
    grow(sent, outgoing.bytes);  // a rank that has failed sends what is there: nobody will use it
    state_.counters.exchanged_bytes += incoming;
    return exchange_.post(outgoing, sent, round.incoming, received_);
  }

  void wait(const std::vector<std::unique_ptr<Request>>& messages) {
    const Stopwatch watch(state_.counters.exchange_ns);
    wait_all(messages);
  }

  /// The collective write of one round. A rank that has failed takes part with nothing.
  void write_together(const Round& round, const Bytes& data) {
    const std::uint64_t bytes = state_.error ? 0 : round.step.end - round.step.begin;
    output_.write_together(bytes == 0 ? 0 : round.step.begin, std::span(data).first(bytes));
  }

  void read_item(const Outgoing::Item& item, std::span<std::byte> to, Buffers& buffers) {
    const Stopwatch watch(state_.counters.read_ns);
    fetch(*state_.sources.get(item.slice.file), item.slice, to.subspan(item.at, dense_bytes(item.slice)), buffers.scratch);
    state_.counters.read_bytes += reads_of(item.slice, buffers.scratch.size()).bytes;
  }

  void read_for_others(const Outgoing& outgoing, Bytes& sent) {
    grow(sent, outgoing.bytes);
    workers_.start(outgoing.items.size(),
                   [&](std::size_t worker, std::size_t task) { read_item(outgoing.items[task], sent, buffers_[worker]); });
    state_.keep(workers_.wait());
  }

  void read_local_copies(const Round::Part& part, std::span<std::byte> output, Buffers& buffers) {
    const Stopwatch watch(state_.counters.read_ns);
    clear_gaps(part.piece.copies, output);
    for (std::size_t c = 0; c < part.piece.copies.size(); ++c)
      if (part.received_at[c] == local) state_.counters.read_bytes += read_copy(state_.sources, part.piece.copies[c], output, buffers).bytes;
  }

  static std::span<std::byte> output_of(const Round& round, const Round::Part& part, Bytes& data) {
    return std::span(data).subspan(part.piece.begin - round.step.begin, part.piece.end - part.piece.begin);
  }

  /// The work of the I/O threads during one round: writing where no collective call does it, reading for this rank, reading for others.
  void start_threads(const Round& made, Bytes& made_data, const Outgoing& next, Bytes& sent, const Round& written, Bytes& written_data) {
    grow(sent, next.bytes);
    const std::size_t writes = output_.is_collective() || state_.error ? 0 : written.parts.size();
    const std::size_t reads = state_.error ? 0 : made.parts.size();
    const std::size_t others = state_.error ? 0 : next.items.size();
    workers_.start(writes + reads + others, [&, writes, reads](std::size_t worker, std::size_t task) {
      if (task < writes) {
        const Round::Part& part = written.parts[task];
        output_.write_alone(part.piece.file, part.piece.begin, output_of(written, part, written_data));
      } else if (task < writes + reads) {
        const Round::Part& part = made.parts[task - writes];
        read_local_copies(part, output_of(made, part, made_data), buffers_[worker]);
      } else {
        read_item(next.items[task - writes - reads], sent, buffers_[worker]);
      }
    });
  }

  /// Puts what was received where it belongs, and notes the checksums.
  void finish(const Round& made, Bytes& data) {
    if (state_.error) return;
    workers_.start(made.parts.size(), [&](std::size_t, std::size_t task) {
      const Round::Part& part = made.parts[task];
      const std::span<std::byte> output = output_of(made, part, data);
      for (std::size_t c = 0; c < part.piece.copies.size(); ++c) {
        const Copy& copy = part.piece.copies[c];
        if (part.received_at[c] != local) place(copy, std::span(received_).subspan(part.received_at[c], dense_bytes(copy.slice)), output);
      }
      state_.book.add(part.piece.file, part.piece.begin, part.piece.end, crc32c(output));
    });
    state_.keep(workers_.wait());
  }

  MoveState& state_;
  const WavePlan& plan_;
  Exchange& exchange_;
  Workers& workers_;
  WaveOutput output_;
  std::vector<Buffers> buffers_;  ///< by thread
  std::array<Bytes, 2> made_, sent_;
  Bytes received_;
  std::uint64_t rounds_between_comparisons_ = 1;
};

std::uint64_t floor_power_of_two(std::uint64_t value) { return value == 0 ? 0 : std::uint64_t{1} << (63 - __builtin_clzll(value)); }

/// Moves waves with steps short enough that no reader sends more in a round than it has memory for.
class RoundsMove {
 public:
  explicit RoundsMove(MoveState& state) : state_(state), plan_(state.plan) {
    if (state.options.home_readers)
      readers_ = collectively(state.comm, "move", [&] { return home_readers(state.source.files, state.comm); });
  }

  /// Collective. Returns the signal that ended it, or 0.
  int move_wave(std::uint32_t wave) {
    while (true) {
      const Budget budget = rounds_budget(state_.options.buffer_bytes, state_.options.threads, plan_.step_bytes);
      const WavePlan wave_plan(state_, plan_, wave, readers_, budget);
      std::vector<Bytes> wanted(static_cast<std::size_t>(state_.comm.size()));
      if (!readers_.empty()) wanted = collectively(state_.comm, "move", [&] { return wave_plan.wanted(); });
      Exchange exchange(state_.comm, std::move(wanted));
      const std::uint64_t largest = state_.comm.reduce_all(exchange.largest_round(), Reduction::max);
      if (largest > budget.send_bytes) {
        shorten_steps(budget.send_bytes, largest);
        continue;
      }
      Workers workers(budget.threads);
      return Wave(state_, wave, wave_plan, exchange, budget, workers).run();
    }
  }

 private:
  /// The same on every rank.
  void shorten_steps(std::uint64_t limit, std::uint64_t largest) {
    constexpr std::uint64_t shortest = 64;
    if (plan_.step_bytes <= shortest) {
      throw Error(ErrorCode::usage, "--buffer-size " + std::to_string(state_.options.buffer_bytes) + ": is too small for " +
                                        std::to_string(state_.comm.size()) + " ranks; at least " +
                                        std::to_string(state_.options.buffer_bytes / limit * largest) + " bytes are needed");
    }
    const auto scaled = static_cast<std::uint64_t>(static_cast<double>(plan_.step_bytes) * static_cast<double>(limit) / static_cast<double>(largest));
    plan_.step_bytes = std::max(shortest, std::min(plan_.step_bytes / 2, floor_power_of_two(scaled)));
  }

  MoveState& state_;
  Plan plan_;  ///< with its steps perhaps shorter than the given one's
  std::vector<int> readers_;
};

}  // namespace

bool writes_collectively(const Group& group, const Comm& comm, IoMode io) {
  if (group.rank_count < 2 || io == IoMode::posix) return false;
  if (io == IoMode::collective) return true;
  for (std::uint32_t r = 1; r < group.rank_count; ++r)
    if (comm.node_of(static_cast<int>(group.first_rank + r)) != comm.node_of(static_cast<int>(group.first_rank))) return true;
  return false;
}

void move_in_rounds(MoveState& state) {
  RoundsMove rounds(state);
  for (std::uint32_t wave = 0; wave < state.plan.wave_count; ++wave) {
    const int signal = rounds.move_wave(wave);
    agree_on_end(state, signal);
  }
}

}  // namespace unshard
