#include "move_needs.h"

#include <algorithm>
#include <functional>
#include <map>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "chunk_selector.h"
#include "file_owners.h"
#include "move_state.h"
#include "piece_walk.h"
#include "readers.h"
#include "unshard/agree.h"
#include "value_bytes.h"
#include "wave_plan.h"

namespace unshard {
namespace {

/// What was counted for the ranks of the plan for which this rank counts.
struct Counts {
  std::uint64_t read_bytes = 0, messages = 0, exchanged_bytes = 0;

  void add(const Counts& other) {
    read_bytes += other.read_bytes;
    messages += other.messages;
    exchanged_bytes += other.exchanged_bytes;
  }
};

/// The same of one wave, and what decides whether its steps are short enough.
struct WaveCounts {
  Counts counts;
  std::uint64_t largest_work = 0;   ///< of one round
  std::vector<std::uint64_t> sent;  ///< bytes by reader and round; empty without home readers
};

class Counting {
 public:
  /// Collective.
  Counting(Comm& comm, const Source& source, const Catalog& catalog, const Targets& targets, const Plan& plan, const MoveOptions& options)
      : comm_(comm),
        source_(source),
        plan_(plan),
        options_(options),
        places_(plan.ranks == comm.size() ? RankPlaces(comm) : RankPlaces::planned(plan.ranks)),
        chunks_(send_planned_chunks(comm, catalog, targets, plan)),
        selector_(chunks_.chunks, catalog.tensors.size(), targets, plan_),
        assembler_(catalog.tensors, targets, plan_, chunks_),
        work_(work_needs(targets)) {
    std::tie(first_, end_) = planned_ranks(comm.rank(), comm.size(), plan.ranks);
    home_ = collectively(comm, "plan", [&] { return file_owners(places_, source); });
    read_by_.resize(static_cast<std::size_t>(end_ - first_));
  }

  /// Collective.
  [[nodiscard]] Readers would_read() const {
    const OwnerReads all = collectively(comm_, "plan", [&] {
      OwnerReads sum;
      for (int rank = first_; rank < end_; ++rank) {
        std::vector<FileId> needed;
        for (const std::uint64_t number : selector_.needed_by(rank, rank + 1)) needed.push_back(chunks_.chunks[number].file);
        const OwnerReads own = owner_reads(places_, rank, source_, home_, std::move(needed));
        sum.opens += own.opens;
        sum.see_all = sum.see_all && own.see_all;
      }
      sum.can_share = plan_.ranks == comm_.size() && can_share(places_, source_, options_.open_files);
      return sum;
    });
    return readers_for(united(comm_, source_, all));
  }

  /// Collective.
  MoveNeeds needs(Readers readers) {
    MoveOptions options = options_;
    options.home_readers = readers == Readers::homes && plan_.ranks > 1;
    Counts counts;
    if (needs_rounds(plan_, places_, options)) {
      for (std::uint32_t wave = 0; wave < plan_.wave_count; ++wave) counts.add(wave_in_rounds(wave, options.home_readers));
    } else {
      counts = collectively(comm_, "plan", [&] { return directly(); });
    }
    MoveNeeds needs;
    needs.readers = plan_.ranks > 1 ? readers : Readers::owners;
    needs.other_ranks = plan_.ranks != comm_.size();
    needs.read_bytes = comm_.reduce_all(counts.read_bytes, Reduction::sum);
    needs.messages = comm_.reduce_all(counts.messages, Reduction::sum);
    needs.exchanged_bytes = comm_.reduce_all(counts.exchanged_bytes, Reduction::sum);
    set_opens(needs);
    return needs;
  }

 private:
  /// Opens for headers: one of each file, by its home rank, which has it open when it reads; and one for each further reader, unless it is
  /// given the open file.
  void set_opens(MoveNeeds& needs) const {
    std::uint64_t further = 0, most = 0;
    for (int rank = first_; rank < end_; ++rank) {
      const std::set<FileId>& files = read_by_[static_cast<std::size_t>(rank - first_)];
      const bool shared = needs.readers == Readers::sharing;
      const std::uint64_t own = shared ? 0 : owner_reads(places_, rank, source_, home_, {files.begin(), files.end()}).opens;
      most = std::max(most, own + static_cast<std::uint64_t>(std::count(home_.begin(), home_.end(), rank)));
      further += own;
    }
    needs.opens = source_.files.size() + comm_.reduce_all(further, Reduction::sum);
    needs.most_opens = comm_.reduce_all(most, Reduction::max);
  }

  void add_reads(const OutputPiece& piece, const Budget& budget, Counts& counts) const {
    for (const Copy& copy : piece.copies) counts.read_bytes += reads_of(copy.slice, budget.scratch_bytes).bytes;
  }

  /// Notes which files an owner reads itself.
  void note_files(int rank, const OutputPiece& piece) {
    for (const Copy& copy : piece.copies) read_by_[static_cast<std::size_t>(rank - first_)].insert(copy.slice.file);
  }

  Counts directly() {
    const Budget budget = direct_budget(options_.buffer_bytes, options_.threads, work_);
    Counts counts;
    for (int rank = first_; rank < end_; ++rank) {
      stop_if_signalled({.signal = options_.signal});
      const ExtentBook book(plan_, rank);
      for (const Run& run : plan_.runs[static_cast<std::size_t>(rank)])
        for_each_counted_piece(assembler_, book, run, budget.piece, [&](const OutputPiece& piece) {
          add_reads(piece, budget, counts);
          note_files(rank, piece);
        });
    }
    return counts;
  }

  /// Collective. With steps as short as the move will make them; they stay so for later waves.
  Counts wave_in_rounds(std::uint32_t wave, bool home_readers) {
    while (true) {
      const Budget budget = rounds_budget(options_.buffer_bytes, options_.threads, plan_.step_bytes, work_);
      const std::uint64_t rounds = rounds_of(wave);
      const WaveCounts wave_counts = collectively(comm_, "plan", [&] { return count_wave(wave, rounds, home_readers, budget); });
      const std::uint64_t work = comm_.reduce_all(wave_counts.largest_work, Reduction::max);
      const std::uint64_t sent = work > budget.work_bytes ? 0 : largest_sent(wave_counts.sent, rounds);
      if (work <= budget.work_bytes && sent <= budget.send_bytes) return wave_counts.counts;
      const StepLimit limit = work > budget.work_bytes ? StepLimit{budget.work_bytes, work} : StepLimit{budget.send_bytes, sent};
      plan_.step_bytes = shorter_step(plan_, limit, options_.buffer_bytes);
    }
  }

  /// Collective.
  [[nodiscard]] std::uint64_t rounds_of(std::uint32_t wave) const {
    std::uint64_t most = 0;
    for (int rank = first_; rank < end_; ++rank) most = std::max<std::uint64_t>(most, steps_of(plan_, rank, wave).size());
    return comm_.reduce_all(most, Reduction::max);
  }

  WaveCounts count_wave(std::uint32_t wave, std::uint64_t rounds, bool home_readers, const Budget& budget) {
    const std::vector<int> readers = home_readers ? home_ : std::vector<int>();
    WaveCounts counted;
    if (home_readers) counted.sent.assign(static_cast<std::size_t>(plan_.ranks) * rounds, 0);
    for (int rank = first_; rank < end_; ++rank) {
      stop_if_signalled({.signal = options_.signal});
      const ExtentBook book(plan_, rank);
      std::uint64_t round = 0;
      for (const Run& step : steps_of(plan_, rank, wave)) {
        for (const auto& [reader, bytes] : count_step(rank, book, step, readers, budget, counted)) {
          ++counted.counts.messages;
          counted.counts.exchanged_bytes += bytes;
          counted.sent[static_cast<std::size_t>(reader) * rounds + round] += bytes;
        }
        ++round;
      }
    }
    return counted;
  }

  /// Returns the messages that the rank gets for this step: who sends how many bytes.
  std::map<int, std::uint64_t> count_step(int rank, const ExtentBook& book, const Run& step, const std::vector<int>& readers,
                                          const Budget& budget, WaveCounts& counted) {
    std::map<int, std::uint64_t> incoming;
    std::uint64_t work_bytes = 0;
    for_each_counted_piece(assembler_, book, step, budget.piece, [&](const OutputPiece& piece) {
      work_bytes += piece.calculation.work_bytes;
      add_reads(piece, budget, counted.counts);
      if (readers.empty()) note_files(rank, piece);
      for (const Copy& copy : piece.copies) {
        const int reader = reader_of(copy, readers, rank);
        if (reader == rank) continue;
        incoming[reader] += dense_bytes(copy.slice);
        if (copy.to_work) work_bytes += dense_bytes(copy.slice);
      }
    });
    counted.largest_work = std::max(counted.largest_work, work_bytes);
    return incoming;
  }

  /// Collective. The most that one reader sends in one round, to all ranks of the plan.
  [[nodiscard]] std::uint64_t largest_sent(const std::vector<std::uint64_t>& sent, std::uint64_t rounds) const {
    if (comm_.reduce_all(sent.size(), Reduction::max) == 0) return 0;
    std::vector<Bytes> to_each;
    for (int rank = 0; rank < comm_.size(); ++rank) {
      const auto [first, end] = planned_ranks(rank, comm_.size(), plan_.ranks);
      const auto begin = sent.begin() + static_cast<std::ptrdiff_t>(static_cast<std::uint64_t>(first) * rounds);
      const auto count = static_cast<std::ptrdiff_t>(static_cast<std::uint64_t>(end - first) * rounds);
      to_each.push_back(bytes_of(std::vector<std::uint64_t>(begin, begin + count)));
    }
    std::vector<std::uint64_t> sums(static_cast<std::size_t>(end_ - first_) * rounds, 0);
    for (const Bytes& bytes : comm_.all_to_all(std::move(to_each))) {
      std::vector<std::uint64_t> more;
      append_values(more, bytes);
      std::transform(more.begin(), more.end(), sums.begin(), sums.begin(), std::plus<>());
    }
    return comm_.reduce_all(sums.empty() ? 0 : *std::max_element(sums.begin(), sums.end()), Reduction::max);
  }

  Comm& comm_;
  const Source& source_;
  Plan plan_;  ///< with its steps perhaps shorter than the given one's
  const MoveOptions& options_;
  RankPlaces places_;
  ChunkTable chunks_;
  ChunkSelector selector_;
  Assembler assembler_;
  WorkNeeds work_;
  int first_ = 0, end_ = 0;                ///< of the plan's ranks, those for which this rank counts
  std::vector<int> home_;                  ///< by file: the rank that reads its headers, and its bytes where home ranks read
  std::vector<std::set<FileId>> read_by_;  ///< by rank: files that it reads as an owner
};

}  // namespace

MoveNeeds move_needs(Comm& comm, const Source& source, const Catalog& catalog, const Targets& targets, const Plan& plan,
                     const MoveOptions& options, std::optional<Readers> readers) {
  Counting counting(comm, source, catalog, targets, plan, options);
  return counting.needs(readers ? *readers : counting.would_read());
}

}  // namespace unshard
