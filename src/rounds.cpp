// In round k a rank posts the messages of round k + 1, whose bytes its readers have read already, and only then enters the collective write
// of round k. While it is in there, its I/O threads read for round k + 2 what it will send, and what it needs itself for round k + 1. So no
// rank waits inside a collective call for a message that another rank still has to be asked for; with ROMIO and with ompio's vulcan and
// dynamic_gen2 that would be a deadlock.
#include "rounds.h"

#include <algorithm>
#include <array>
#include <memory>
#include <mutex>
#include <numeric>
#include <set>
#include <utility>

#include "crc32c.h"
#include "exchange.h"
#include "file_owners.h"
#include "unshard/agree.h"
#include "wave_output.h"
#include "wave_plan.h"
#include "workers.h"

namespace unshard {
namespace {

/// One wave under way.
class Wave {
 public:
  Wave(MoveState& state, std::uint32_t wave, const WavePlan& plan, Exchange& exchange, const Budget& budget, Workers& workers)
      : state_(state),
        plan_(plan),
        exchange_(exchange),
        workers_(workers),
        output_(state, wave, budget.scratch_bytes),
        buffers_(workers.size()) {
    for (Buffers& buffers : buffers_) buffers.scratch.resize(budget.scratch_bytes);
    for (Bytes& made : made_) made.resize(plan.largest_step());
    rounds_between_comparisons_ =
        std::clamp<std::uint64_t>(compare_bytes / std::max<std::uint64_t>(budget.piece.most_bytes, 1), 1, most_rounds_between_comparisons);
  }

  /// Collective. Returns the signal that ended it early, or 0.
  int run() {
    Outgoing ready = exchange_.next_round();
    read_for_others(ready, sent_[0]);
    Round written;
    Common common;
    // Each turn makes one round and writes the one before.
    for (std::uint64_t number = 0; number <= plan_.rounds() && !common.must_stop; ++number) {
      Round made = plan_.round(number);
      const std::vector<std::unique_ptr<Request>> messages = post(ready, sent_[number % 2], made, made_[number % 2]);
      Outgoing next = exchange_.next_round();
      const Waiting until_threads_end(workers_);
      start_threads(made, made_[number % 2], next, sent_[(number + 1) % 2], written, made_[(number + 1) % 2]);
      if (output_.is_collective() && number > 0) write_together(written, made_[(number + 1) % 2]);
      state_.keep(workers_.wait());
      wait(messages);
      finish(made, made_[number % 2]);
      written = std::move(made);
      ready = std::move(next);
      if (number % rounds_between_comparisons_ == 0) common = compare();
    }
    output_.close();
    if (!common.must_stop) common = compare();
    settle_rest(common);
    if (!common.must_stop) common = compare();
    return common.signal;
  }

 private:
  // Ranks wait for one another here, where `individual` and ROMIO would let them drift: seldom, but soon enough for a signal.
  static constexpr std::uint64_t compare_bytes = std::uint64_t{16} << 20;  ///< what a killed rank may have written in vain
  static constexpr std::uint64_t most_rounds_between_comparisons = 16;

  /// Collective. A rank that has failed goes on sending what it has not read, and its receivers write it. So what was written counts only
  /// once no rank has failed: what is written in one turn was read in earlier ones. And what ranks write together may be written by
  /// another one than it came from: it is settled only once every rank has returned from the call. (MPI promises others the bytes only
  /// after MPI_File_sync; ROMIO and ompio have written them when they return. Else a right merge would be refused.)
  Common compare() {
    const Common common = compare_standing(state_, state_.error ? Standing::failed : Standing::working);
    if (!common.must_stop || common.signal != 0) {
      state_.keep(attempt([&] {
        for (const Extent& extent : written_)
          if (state_.options.written) state_.options.written(extent);
        if (output_.is_collective() && !common.must_stop) output_.settle_behind(written_);
      }));
    }
    written_.clear();
    return common;
  }

  /// Threads use what an exception would take away.
  class Waiting {
   public:
    explicit Waiting(Workers& workers) : workers_(workers) {}
    Waiting(const Waiting&) = delete;
    Waiting& operator=(const Waiting&) = delete;
    ~Waiting() { (void)workers_.wait(); }

   private:
    Workers& workers_;
  };

  static void grow(Bytes& buffer, std::uint64_t bytes) {
    if (buffer.size() < bytes) buffer.resize(bytes);
  }

  /// What arrives where it belongs needs its range cleared before.
  std::vector<std::unique_ptr<Request>> post(const Outgoing& outgoing, Bytes& sent, const Round& made, Bytes& made_data) {
    for (const Round::Part& part : made.parts)
      if (part.piece.calculation.target == nullptr) clear_gaps(part.piece.copies, output_of(made, part, made_data));
    grow(received_, std::accumulate(made.incoming.begin(), made.incoming.end(), std::uint64_t{0}));
    grow(sent, outgoing.bytes);  // a rank that has failed sends what is there
    std::vector<Incoming> incoming;
    std::span<std::byte> rest = received_;
    for (std::size_t rank = 0; rank < made.incoming.size(); ++rank) {
      if (made.incoming[rank] > 0) incoming.push_back({static_cast<int>(rank), rest.first(made.incoming[rank])});
      rest = rest.subspan(made.incoming[rank]);
    }
    for (const Round::Alone& alone : made.alone) incoming.push_back({alone.rank, std::span(made_data).subspan(alone.at, alone.bytes)});
    std::set<int> senders;
    for (const Incoming& message : incoming) {
      senders.insert(message.rank);
      state_.counters.exchanged_bytes += message.to.size();
    }
    state_.counters.messages += senders.size();
    return exchange_.post(outgoing, sent, incoming);
  }

  void settle_rest(const Common& common) {
    if (state_.error || common.must_stop) return;
    state_.keep(attempt([&] { output_.finish_settling(); }));
    if (state_.error) return;
    workers_.start(workers_.size(), [&](std::size_t worker, std::size_t) { state_.settler.finish(buffers_[worker].scratch); });
    state_.keep(workers_.wait());
  }

  void wait(const std::vector<std::unique_ptr<Request>>& messages) {
    const Stopwatch watch(state_.counters.exchange_ns);
    wait_all(messages);
  }

  /// The collective write of one round. A rank that has failed takes part with nothing.
  void write_together(const Round& round, const Bytes& data) {
    const std::uint64_t bytes = state_.error ? 0 : round.step.end - round.step.begin;
    output_.write_together(bytes == 0 ? 0 : round.step.begin, std::span(data).first(bytes));
    if (bytes == 0 || state_.error) return;
    state_.keep(attempt([&] {
      for (const Round::Part& part : round.parts) note_written(part);
    }));
  }

  void note_written(const Round::Part& part) {
    if (!state_.options.written && !output_.is_collective()) return;
    const std::lock_guard lock(mutex_);
    written_.push_back(extent_of(part));
  }

  static Extent extent_of(const Round::Part& part) { return {part.piece.file, part.piece.begin, part.piece.end, part.crc32c}; }

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

  void read_local_copies(Round::Part& part, std::span<std::byte> output, Buffers& buffers) {
    const Stopwatch watch(state_.counters.read_ns);
    part.work.resize(part.piece.calculation.work_bytes);
    for (std::size_t c = 0; c < part.piece.copies.size(); ++c) {
      const Copy& copy = part.piece.copies[c];
      if (part.received_at[c] == not_received)
        state_.counters.read_bytes += read_copy(state_.sources, copy, copy.to_work ? std::span(part.work) : output, buffers).bytes;
    }
  }

  static std::span<std::byte> output_of(const Round& round, const Round::Part& part, Bytes& data) {
    return std::span(data).subspan(part.piece.begin - round.step.begin, part.piece.end - part.piece.begin);
  }

  /// The work of the I/O threads during one round: writing where no collective call does it, reading for this rank, reading for others.
  void start_threads(Round& made, Bytes& made_data, const Outgoing& next, Bytes& sent, const Round& written, Bytes& written_data) {
    grow(sent, next.bytes);
    const std::size_t writes = output_.is_collective() || state_.error ? 0 : written.parts.size();
    const std::size_t reads = state_.error ? 0 : made.parts.size();
    const std::size_t others = state_.error ? 0 : next.items.size();
    workers_.start(writes + reads + others, [&, writes, reads](std::size_t worker, std::size_t task) {
      if (task < writes) {
        const Round::Part& part = written.parts[task];
        output_.write_alone(extent_of(part), output_of(written, part, written_data), buffers_[worker].scratch);
        note_written(part);
      } else if (task < writes + reads) {
        Round::Part& part = made.parts[task - writes];
        const std::span<std::byte> output = output_of(made, part, made_data);
        read_local_copies(part, output, buffers_[worker]);
        if (!waits_for_others(part)) note_made(part, output, buffers_[worker]);  // while the bytes are in this core's cache
      } else {
        read_item(next.items[task - writes - reads], sent, buffers_[worker]);
      }
    });
  }

  static bool waits_for_others(const Round::Part& part) {
    return std::any_of(part.received_at.begin(), part.received_at.end(), [](std::uint64_t at) { return at != not_received; });
  }

  /// All that a part is made from is at hand.
  void note_made(Round::Part& part, std::span<std::byte> output, Buffers& buffers) {
    if (part.piece.calculation.target != nullptr) compute(part.piece.calculation, output, part.work, buffers.tiles);
    part.work = {};
    part.crc32c = crc32c(output);
    state_.book.add(part.piece.file, part.piece.begin, part.piece.end, part.crc32c);
  }

  /// Puts what was received where it belongs, and notes the checksums.
  void finish(Round& made, Bytes& data) {
    if (state_.error || std::none_of(made.parts.begin(), made.parts.end(), waits_for_others)) return;
    workers_.start(made.parts.size(), [&](std::size_t worker, std::size_t task) {
      Round::Part& part = made.parts[task];
      if (!waits_for_others(part)) return;
      const std::span<std::byte> output = output_of(made, part, data);
      for (std::size_t c = 0; c < part.piece.copies.size(); ++c) {
        const Copy& copy = part.piece.copies[c];
        if (is_in_receive_buffer(part.received_at[c]))
          place(copy, std::span(received_).subspan(part.received_at[c], dense_bytes(copy.slice)),
                copy.to_work ? std::span(part.work) : output);
      }
      note_made(part, output, buffers_[worker]);
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
  std::mutex mutex_;
  std::vector<Extent> written_;  ///< since ranks were compared last
};

/// Moves waves with steps short enough that no reader sends more in a round than it has memory for.
class RoundsMove {
 public:
  explicit RoundsMove(MoveState& state)
      : state_(state), plan_(state.plan), writes_together_(writes_some_collectively(plan_, RankPlaces(state.comm), state.options.io)) {
    if (state.options.home_readers) readers_ = collectively(state.comm, "move", [&] { return file_owners(state.comm, state.source); });
  }

  /// Collective. Returns the signal that ended it, or 0.
  int move_wave(std::uint32_t wave) {
    while (true) {
      const Budget budget = rounds_budget(state_.options.buffer_bytes, state_.options.threads, plan_.step_bytes, state_.work);
      const WavePlan wave_plan(state_, plan_, wave, readers_, budget);
      const auto work = collectively(state_.comm, "move", [&] { return wave_plan.largest_work(); });
      if (const std::uint64_t most = state_.comm.reduce_all(work, Reduction::max); most > budget.work_bytes) {
        shorten_steps({budget.work_bytes, most});
        continue;
      }
      std::vector<Bytes> wanted(static_cast<std::size_t>(state_.comm.size()));
      if (!readers_.empty()) wanted = collectively(state_.comm, "move", [&] { return wave_plan.wanted(); });
      Exchange exchange(state_.comm, std::move(wanted));
      const std::uint64_t largest = state_.comm.reduce_all(exchange.largest_round(), Reduction::max);
      if (largest > budget.send_bytes) {
        shorten_steps({budget.send_bytes, largest});
        continue;
      }
      Workers workers(budget.threads, writes_together_ ? Workers::Wakes::last : Workers::Wakes::first);
      const int signal = Wave(state_, wave, wave_plan, exchange, budget, workers).run();
      state_.busy_ns += workers.busy_ns();
      return signal;
    }
  }

 private:
  /// The same on every rank.
  void shorten_steps(const StepLimit& limit) { plan_.step_bytes = shorter_step(plan_, limit, state_.options.buffer_bytes); }

  MoveState& state_;
  Plan plan_;  ///< with its steps perhaps shorter than the given one's
  bool writes_together_;
  std::vector<int> readers_;
};

}  // namespace

void move_in_rounds(MoveState& state) {
  RoundsMove rounds(state);
  for (std::uint32_t wave = 0; wave < state.plan.wave_count; ++wave) {
    const int signal = rounds.move_wave(wave);
    agree_on_end(state, signal);
  }
}

}  // namespace unshard
