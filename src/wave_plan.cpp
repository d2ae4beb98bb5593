#include "wave_plan.h"

#include <algorithm>

#include "exchange.h"
#include "piece_walk.h"

namespace unshard {

WavePlan::WavePlan(MoveState& state, const Plan& plan, std::uint32_t wave, const std::vector<int>& readers, const Budget& budget)
    : state_(state), readers_(readers), budget_(budget) {
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
    for (const Round::Part& part : round(number).parts) bytes += part.piece.calculation.work_bytes;
    largest = std::max(largest, bytes);
  }
  return largest;
}

std::vector<Bytes> WavePlan::wanted() const {
  std::vector<SliceListWriter> lists(static_cast<std::size_t>(state_.comm.size()));
  for (std::uint64_t number = 0; number < rounds_; ++number) {
    std::vector<std::vector<Slice>> slices(lists.size());
    for (const Round::Part& part : round(number).parts)
      for (std::size_t c = 0; c < part.piece.copies.size(); ++c)
        if (part.received_at[c] != not_received) slices[reader_of(part.piece.copies[c])].push_back(part.piece.copies[c].slice);
    for (std::size_t rank = 0; rank < lists.size(); ++rank) lists[rank].add_round(slices[rank]);
  }
  std::vector<Bytes> result;
  for (SliceListWriter& list : lists) result.push_back(list.take());
  return result;
}

/// The messages of a round lie one after the other in the receive buffer, by sender.
void WavePlan::place_messages(Round& round) const {
  for (const Round::Part& part : round.parts)
    for (const Copy& copy : part.piece.copies)
      if (reader_of(copy) != state_.comm.rank()) round.incoming[reader_of(copy)] += dense_bytes(copy.slice);
  std::vector<std::uint64_t> at(round.incoming.size(), 0);
  for (std::size_t rank = 1; rank < at.size(); ++rank) at[rank] = at[rank - 1] + round.incoming[rank - 1];
  for (Round::Part& part : round.parts) {
    for (const Copy& copy : part.piece.copies) {
      const bool is_local = reader_of(copy) == state_.comm.rank();
      part.received_at.push_back(is_local ? not_received : at[reader_of(copy)]);
      if (!is_local) at[reader_of(copy)] += dense_bytes(copy.slice);
    }
  }
}

}  // namespace unshard
