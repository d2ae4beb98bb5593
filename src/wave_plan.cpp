#include "wave_plan.h"

#include <algorithm>

#include "exchange.h"
#include "piece_walk.h"

namespace unshard {
namespace {

// Messages of a round that go alone; below 64 KiB, for the usual step of 8 MiB, a message costs more than copying its bytes. (So that their
// number is bounded, it is less for shorter steps.)
constexpr std::uint64_t most_alone = 128;

}  // namespace

WavePlan::WavePlan(MoveState& state, const Plan& plan, std::uint32_t wave, const std::vector<int>& readers, const Budget& budget)
    : state_(state), readers_(readers), budget_(budget), least_alone_bytes_(std::max<std::uint64_t>(plan.step_bytes / most_alone, 1)) {
  steps_ = steps_of(plan, state.comm.rank(), wave);
  rounds_ = state.comm.reduce_all(steps_.size(), Reduction::max);
}

std::uint64_t WavePlan::largest_step() const {
  std::uint64_t largest = 0;
  for (const Run& step : steps_) largest = std::max(largest, step.end - step.begin);
  return largest;
}

Round WavePlan::round(std::uint64_t number) const {
  Round round;
  round.incoming.assign(static_cast<std::size_t>(state_.comm.size()), 0);
  if (number >= steps_.size()) return round;
  round.step = steps_[number];
  for_each_piece(state_.assembler, state_.book, round.step, budget_.piece, [&](OutputPiece piece) {
    round.parts.push_back({std::move(piece), {}, {}, {}});
  });
  place_messages(round);
  return round;
}

std::uint64_t WavePlan::largest_work() const {
  std::uint64_t largest = 0;
  if (state_.work.least_bytes == 0) return largest;
  for (std::uint64_t number = 0; number < steps_.size(); ++number) {
    std::uint64_t bytes = 0;
    for (const Round::Part& part : round(number).parts) {
      bytes += part.piece.calculation.work_bytes;
      for (const Copy& copy : part.piece.copies)
        if (copy.to_work && reader_of(copy) != state_.comm.rank()) bytes += dense_bytes(copy.slice);
    }
    largest = std::max(largest, bytes);
  }
  return largest;
}

std::vector<Bytes> WavePlan::wanted() const {
  std::vector<SliceListWriter> lists(static_cast<std::size_t>(state_.comm.size()));
  for (std::uint64_t number = 0; number < rounds_; ++number) {
    std::vector<std::vector<Wanted>> slices(lists.size());
    for (const Round::Part& part : round(number).parts) {
      for (std::size_t c = 0; c < part.piece.copies.size(); ++c) {
        const Copy& copy = part.piece.copies[c];
        if (part.received_at[c] != not_received) slices[reader_of(copy)].push_back({copy.slice, part.received_at[c] == received_in_place});
      }
    }
    for (std::size_t rank = 0; rank < lists.size(); ++rank) lists[rank].add_round(slices[rank]);
  }
  std::vector<Bytes> result;
  for (SliceListWriter& list : lists) result.push_back(list.take());
  return result;
}

bool WavePlan::goes_alone(const Copy& copy) const {
  return !copy.to_work && is_dense(copy) && dense_bytes(copy.slice) >= least_alone_bytes_;
}

/// Joined messages lie one after the other in the receive buffer, by sender.
void WavePlan::place_messages(Round& round) const {
  const auto is_joined = [&](const Copy& copy) { return reader_of(copy) != state_.comm.rank() && !goes_alone(copy); };
  for (const Round::Part& part : round.parts)
    for (const Copy& copy : part.piece.copies)
      if (is_joined(copy)) round.incoming[reader_of(copy)] += dense_bytes(copy.slice);
  std::vector<std::uint64_t> at(round.incoming.size(), 0);
  for (std::size_t rank = 1; rank < at.size(); ++rank) at[rank] = at[rank - 1] + round.incoming[rank - 1];
  for (Round::Part& part : round.parts) {
    for (const Copy& copy : part.piece.copies) {
      const int reader = reader_of(copy);
      const std::uint64_t bytes = dense_bytes(copy.slice);
      if (reader == state_.comm.rank()) {
        part.received_at.push_back(not_received);
      } else if (is_joined(copy)) {
        part.received_at.push_back(at[reader]);
        at[reader] += bytes;
      } else {
        part.received_at.push_back(received_in_place);
        round.alone.push_back({reader, part.piece.begin - round.step.begin + copy.target, bytes});
      }
    }
  }
}

}  // namespace unshard
