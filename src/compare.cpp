#include "compare.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstring>
#include <exception>
#include <mutex>
#include <thread>

#include "compare_side.h"
#include "thread_loop.h"
#include "unshard/agree.h"
#include "value_bytes.h"

namespace unshard {
namespace {

constexpr std::uint64_t group_bytes = std::uint64_t{16} << 20U;
constexpr std::uint64_t most_piece_bytes = std::uint64_t{1} << 20U;
constexpr std::uint64_t most_element_bytes = 16;
// A thread has the piece of each side, dense bytes while one of them is made, scratch, and what the arithmetic takes.
constexpr std::uint64_t thread_pieces = 3;
constexpr std::uint64_t least_scratch_bytes = std::uint64_t{64} << 10U, most_scratch_bytes = std::uint64_t{512} << 10U;
static_assert(least_scratch_bytes + Arithmetic::working_bytes + (thread_pieces + 2) * most_element_bytes * Arithmetic::slice_elements <=
              least_comparing_bytes);

/// How the buffers of a rank are divided.
struct Division {
  std::size_t threads = 1;
  std::uint64_t scratch_bytes = 0;
  std::uint64_t piece_bytes = 0;  ///< holds at least one slice of any type
  std::uint64_t others = 1;       ///< for so many ranks together this rank can read at once
};

std::uint64_t scratch_of(std::uint64_t bytes) {
  return std::clamp(bytes / 16, least_scratch_bytes, most_scratch_bytes);
}

Division for_threads(const WorkLimits& limits) {
  Division of;
  of.threads = static_cast<std::size_t>(
      std::clamp<std::uint64_t>(limits.buffer_bytes / least_comparing_bytes, 1, static_cast<std::uint64_t>(std::max(limits.threads, 1))));
  const std::uint64_t each = limits.buffer_bytes / of.threads;
  of.scratch_bytes = scratch_of(each);
  of.piece_bytes = std::min(most_piece_bytes, std::bit_floor((each - Arithmetic::working_bytes - of.scratch_bytes) / thread_pieces));
  return of;
}

/// One thread; what it receives, and what it reads for each of the others, is a piece, too.
Division for_rounds(const WorkLimits& limits) {
  Division of;
  of.scratch_bytes = scratch_of(limits.buffer_bytes);
  const std::uint64_t left = limits.buffer_bytes - Arithmetic::working_bytes - of.scratch_bytes;
  of.piece_bytes = std::min(most_piece_bytes, std::bit_floor(left / (thread_pieces + 2)));
  of.others = (left - (thread_pieces + 1) * of.piece_bytes) / of.piece_bytes;
  return of;
}

bool is_complex(DType dtype) {
  return dtype == DType::c32 || dtype == DType::c64 || dtype == DType::c128;
}

/// Elements [first, end) of one pair.
struct Group {
  std::uint32_t pair = 0;
  std::uint64_t first = 0, end = 0;
};

struct GroupResult {
  std::uint64_t group = 0;
  std::uint32_t pair = 0;
  std::uint32_t skipped = 0;  ///< 1: some pieces had equal bits and are not in the sums
  Difference difference;
};

/// The selected targets of one side as one file without gaps, in the order of pairs.
Targets selected(const Targets& from, std::span<const Pair> pairs, std::uint32_t Pair::*number) {
  Targets out;
  out.targets.reserve(pairs.size());
  for (const Pair& pair : pairs) out.targets.push_back(from.targets[pair.*number]);
  return out;
}

class Comparison {
 public:
  Comparison(Comm& comm, Log& log, const Side& a, const Side& b, std::span<const Pair> pairs, const CompareOptions& options)
      : comm_(comm),
        log_(log),
        options_(options),
        a_targets_(selected(a.targets, pairs, &Pair::a)),
        b_targets_(selected(b.targets, pairs, &Pair::b)) {
    cut();
    const std::vector<std::uint64_t> starts = deal();
    mine_first_ = starts[static_cast<std::size_t>(comm.rank())];
    mine_end_ = starts[static_cast<std::size_t>(comm.rank()) + 1];
    a_.emplace(comm, a, a_targets_, ranges(a_targets_, starts));
    b_.emplace(comm, b, b_targets_, ranges(b_targets_, starts));
  }

  std::vector<Difference> run() {
    std::vector<std::uint64_t> work;
    for (std::uint64_t group = mine_first_; group < mine_end_; ++group) work.push_back(group);
    std::vector<GroupResult> results = compare(work, false);
    const std::vector<bool> differs = differing_pairs(results, options_.all_sums);
    // For sums over whole tensors: what was skipped there is computed now. Tensors that differ are few, or all bits differ and nothing was
    // skipped.
    work.clear();
    for (const GroupResult& result : results) {
      if (differs[result.pair] && result.skipped != 0) work.push_back(result.group);
    }
    for (const GroupResult& complete : compare(work, true)) results[complete.group - mine_first_] = complete;
    return fold(results, differs);
  }

 private:
  [[nodiscard]] std::uint64_t a_size(std::uint32_t pair) const { return info(a_targets_.targets[pair].dtype).size_bytes; }
  [[nodiscard]] std::uint64_t b_size(std::uint32_t pair) const { return info(b_targets_.targets[pair].dtype).size_bytes; }

  void cut() {
    for (std::uint32_t pair = 0; pair < a_targets_.targets.size(); ++pair) {
      const std::uint64_t elements = volume(a_targets_.targets[pair].shape);
      const std::uint64_t step = group_bytes / std::max(a_size(pair), b_size(pair));
      for (std::uint64_t first = 0; first < elements; first += step) groups_.push_back({pair, first, std::min(first + step, elements)});
    }
  }

  /// The first group of each rank, and the end.
  [[nodiscard]] std::vector<std::uint64_t> deal() const {
    const auto ranks = static_cast<std::uint64_t>(comm_.size());
    const auto weight = [&](const Group& group) { return (group.end - group.first) * (a_size(group.pair) + b_size(group.pair)); };
    std::uint64_t total = 0, before = 0;
    for (const Group& group : groups_) total += weight(group);
    std::vector<std::uint64_t> starts{0};
    for (std::uint64_t number = 0; number < groups_.size(); ++number) {
      while (starts.size() < ranks && before * ranks >= total * starts.size()) starts.push_back(number);
      before += weight(groups_[number]);
    }
    starts.resize(ranks + 1, groups_.size());
    starts.front() = 0;
    return starts;
  }

  /// The bytes of one side that each rank compares.
  [[nodiscard]] std::vector<ByteRange> ranges(const Targets& targets, const std::vector<std::uint64_t>& starts) const {
    std::vector<std::uint64_t> begin;  // of each group
    std::uint64_t position = 0;
    for (const Group& group : groups_) {
      begin.push_back(position);
      position += (group.end - group.first) * info(targets.targets[group.pair].dtype).size_bytes;
    }
    begin.push_back(position);
    std::vector<ByteRange> out;
    for (std::size_t rank = 0; rank + 1 < starts.size(); ++rank) out.push_back({begin[starts[rank]], begin[starts[rank + 1]]});
    return out;
  }

  /// Collective. `groups` in order; `all` computes what has equal bits, too.
  std::vector<GroupResult> compare(const std::vector<std::uint64_t>& groups, bool all) {
    std::uint64_t bytes = 0;
    for (const std::uint64_t group : groups) bytes += (groups_[group].end - groups_[group].first) * a_size(groups_[group].pair);
    if (bytes > 0) log_.begin_progress("Comparing", bytes);
    std::vector<GroupResult> results(groups.size());
    const bool alone = a_->everywhere() && b_->everywhere();
    division_ = alone ? for_threads(options_.limits) : for_rounds(options_.limits);
    if (alone) {
      collectively(comm_, "test", [&] {
        compare_by_threads(groups, all, results);
        stop_if_signalled(options_.limits);  // of a rank that had nothing to compare
      });
    } else {
      compare_in_rounds(groups, all, results);
    }
    if (bytes > 0) log_.end_progress();
    return results;
  }

  void compare_by_threads(const std::vector<std::uint64_t>& groups, bool all, std::vector<GroupResult>& results) {
    std::atomic<std::size_t> next{0};
    std::mutex mutex;  // of failure and log
    std::exception_ptr failure;
    const auto work = [&] {
      try {
        PieceBuffers buffers(division_);
        for (std::size_t i = next++; i < groups.size(); i = next++) {
          GroupResult result = empty_result(groups[i]);
          for (Group piece = first_piece(groups[i]); piece.first < piece.end; piece = piece_after(piece, groups[i])) {
            stop_if_signalled(options_.limits);
            a_->read(byte_range(piece, a_size(piece.pair), *a_), buffers.a, buffers.work);
            b_->read(byte_range(piece, b_size(piece.pair), *b_), buffers.b, buffers.work);
            compare_piece(piece, buffers.a, buffers.b, all, result);
          }
          results[i] = result;
          const std::lock_guard lock(mutex);
          log_.add_progress((groups_[groups[i]].end - groups_[groups[i]].first) * a_size(result.pair));
        }
      } catch (...) {
        const std::lock_guard lock(mutex);
        if (!failure) failure = std::current_exception();
        next = groups.size();
      }
    };
    std::vector<std::jthread> threads;
    start_threads(threads, std::min(division_.threads, groups.size()), work);
    work();
    threads.clear();
    if (failure) std::rethrow_exception(failure);
  }

  /// Some shards lie on one node only: the ranks go through their pieces in step, and those that see a file read it for the others. Where
  /// one rank could not hold a piece for each of the others, they take turns.
  void compare_in_rounds(const std::vector<std::uint64_t>& groups, bool all, std::vector<GroupResult>& results) {
    std::vector<std::pair<std::size_t, Group>> pieces;
    for (std::size_t i = 0; i < groups.size(); ++i) {
      results[i] = empty_result(groups[i]);
      for (Group piece = first_piece(groups[i]); piece.first < piece.end; piece = piece_after(piece, groups[i]))
        pieces.emplace_back(i, piece);
    }
    const auto ranks = static_cast<std::uint64_t>(comm_.size()), rank = static_cast<std::uint64_t>(comm_.rank());
    const std::uint64_t turns = (ranks + division_.others - 1) / division_.others;
    const std::uint64_t rounds = comm_.reduce_all(pieces.size(), Reduction::max) * turns;
    PieceBuffers buffers(division_);
    for (std::uint64_t round = 0; round < rounds; ++round) {
      const std::uint64_t number = round / turns;
      const bool active = number < pieces.size() && rank % turns == round % turns;
      const Group piece = active ? pieces[number].second : Group{};
      a_->read_together(comm_, active ? byte_range(piece, a_size(piece.pair), *a_) : ByteRange{}, buffers.a, buffers.work);
      b_->read_together(comm_, active ? byte_range(piece, b_size(piece.pair), *b_) : ByteRange{}, buffers.b, buffers.work);
      collectively(comm_, "test", [&] {
        stop_if_signalled(options_.limits);
        if (!active) return;
        compare_piece(piece, buffers.a, buffers.b, all, results[pieces[number].first]);
        log_.add_progress((piece.end - piece.first) * a_size(piece.pair));
      });
    }
  }

  [[nodiscard]] GroupResult empty_result(std::uint64_t group) const { return {group, groups_[group].pair, 0, {}}; }

  [[nodiscard]] Group piece_from(std::uint64_t first, const Group& group) const {
    const std::uint64_t most = division_.piece_bytes / std::max(a_size(group.pair), b_size(group.pair));
    return {group.pair, first, std::min(first + most - most % Arithmetic::slice_elements, group.end)};
  }
  [[nodiscard]] Group first_piece(std::uint64_t group) const { return piece_from(groups_[group].first, groups_[group]); }
  [[nodiscard]] Group piece_after(const Group& piece, std::uint64_t group) const { return piece_from(piece.end, groups_[group]); }

  [[nodiscard]] static ByteRange byte_range(const Group& piece, std::uint64_t size, const ComparedSide& side) {
    const std::uint64_t start = side.start_of(piece.pair);
    return {start + piece.first * size, start + piece.end * size};
  }

  void compare_piece(const Group& piece, std::span<const std::byte> a, std::span<const std::byte> b, bool all, GroupResult& result) const {
    const DType a_dtype = a_targets_.targets[piece.pair].dtype, b_dtype = b_targets_.targets[piece.pair].dtype;
    const std::uint64_t count = piece.end - piece.first, a_bytes = a_size(piece.pair), b_bytes = b_size(piece.pair);
    for (std::uint64_t first = 0; first < count; first += Arithmetic::slice_elements) {
      const std::uint64_t elements = std::min(Arithmetic::slice_elements, count - first);
      const auto of_a = a.subspan(first * a_bytes, elements * a_bytes), of_b = b.subspan(first * b_bytes, elements * b_bytes);
      if (!all && a_dtype == b_dtype && std::memcmp(of_a.data(), of_b.data(), of_a.size()) == 0) {
        result.skipped = 1;
        continue;
      }
      add(result.difference, arithmetic().compare(of_a, a_dtype, of_b, b_dtype, options_.tolerance, options_.like_dtype),
          piece.first + first);
    }
  }

  /// Collective.
  [[nodiscard]] std::vector<bool> differing_pairs(const std::vector<GroupResult>& results, bool in_any_bit) {
    Bytes mine((a_targets_.targets.size() + 7) / 8);
    for (const GroupResult& result : results) {
      if (result.difference.count > 0 || (in_any_bit && result.difference.pairs > 0))
        mine[result.pair / 8] |= std::byte{1} << (result.pair % 8);
    }
    std::vector<bool> differs(a_targets_.targets.size());
    for (const Bytes& bits : comm_.gather_all(mine)) {
      for (std::size_t pair = 0; pair < differs.size(); ++pair) {
        if ((bits[pair / 8] & (std::byte{1} << (pair % 8))) != std::byte{0}) differs[pair] = true;
      }
    }
    return differs;
  }

  /// Collective. Adds the groups of each differing pair in order; ranks hold neighbouring groups in order.
  [[nodiscard]] std::vector<Difference> fold(const std::vector<GroupResult>& results, const std::vector<bool>& differs) {
    std::vector<GroupResult> sent;
    std::ranges::copy_if(results, std::back_inserter(sent), [&](const GroupResult& result) { return differs[result.pair]; });
    std::vector<GroupResult> all;
    for (const Bytes& part : comm_.gather_all(bytes_of(sent))) append_values(all, part);
    std::vector<Difference> out(a_targets_.targets.size());
    for (const GroupResult& result : all) add(out[result.pair], result.difference, 0);
    return out;
  }

  /// Of one thread.
  struct PieceBuffers {
    explicit PieceBuffers(const Division& division) {
      for (std::vector<std::byte>* buffer : {&a, &b, &work.dense}) buffer->reserve(division.piece_bytes);
      work.scratch.resize(division.scratch_bytes);
    }
    std::vector<std::byte> a, b;
    Buffers work;
  };

  Comm& comm_;
  Log& log_;
  CompareOptions options_;
  Targets a_targets_, b_targets_;
  std::vector<Group> groups_;
  std::uint64_t mine_first_ = 0, mine_end_ = 0;
  Division division_;
  std::optional<ComparedSide> a_, b_;
};

}  // namespace

bool comparable(DType a, DType b) {
  return a == b || (is_complex(a) == is_complex(b) && a != DType::f4_x2 && b != DType::f4_x2);
}

std::vector<Difference> compare_pairs(Comm& comm, Log& log, const Side& a, const Side& b, std::span<const Pair> pairs,
                                      const CompareOptions& options) {
  return Comparison(comm, log, a, b, pairs, options).run();
}

}  // namespace unshard
