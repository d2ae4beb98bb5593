// What a rank makes in each round of a wave, and who reads what for it.
#pragma once

#include <cstdint>
#include <vector>

#include "move_state.h"

namespace unshard {

/// What this rank makes in one round.
struct Round {
  Run step;  ///< empty when it makes nothing
  struct Part {
    OutputPiece piece;
    std::vector<std::uint64_t> received_at;  ///< of each copy: where its dense bytes arrive in the receive buffer, or one of those below
    std::uint32_t crc32c = 0;                ///< once it is made
    Bytes work;                              ///< the work area of a computed piece, from reading until it is computed
  };
  std::vector<Part> parts;
  std::vector<std::uint64_t> incoming;  ///< bytes from each rank that arrive in the receive buffer, one rank's after the other's
  struct Alone {
    int rank = 0;
    std::uint64_t at = 0, bytes = 0;  ///< in the step
  };
  std::vector<Alone> alone;  ///< what arrives where it belongs, in the order of the lists
};

/// In Round::Part::received_at: the rank reads the copy itself.
inline constexpr std::uint64_t not_received = ~std::uint64_t{0};
/// In Round::Part::received_at: it arrives where it belongs.
inline constexpr std::uint64_t received_in_place = not_received - 1;
[[nodiscard]] inline bool is_in_receive_buffer(std::uint64_t received_at) {
  return received_at != not_received && received_at != received_in_place;
}

/// Who reads the slice of a copy for `owner`. `readers`: by file; empty: every rank reads for itself.
[[nodiscard]] inline int reader_of(const Copy& copy, const std::vector<int>& readers, int owner) {
  return readers.empty() ? owner : readers[copy.slice.file];
}

class WavePlan {
 public:
  /// Collective. `plan` has the steps. `readers`: the rank that reads each file; empty: every rank reads for itself. References are kept.
  WavePlan(MoveState& state, const Plan& plan, std::uint32_t wave, const std::vector<int>& readers, const Budget& budget);

  [[nodiscard]] std::uint64_t rounds() const { return rounds_; }  ///< the same on every rank
  [[nodiscard]] std::uint64_t largest_step() const;

  /// Local, pure. What this rank makes in round `number`. The same after a failure: the messages of a round do not depend on it.
  [[nodiscard]] Round round(std::uint64_t number) const;

  /// Local. The most that the work areas of one round take together, with what arrives for them.
  [[nodiscard]] std::uint64_t largest_work() const;

  /// Local. The lists of all rounds for each reader (exchange.h).
  [[nodiscard]] std::vector<Bytes> wanted() const;

 private:
  [[nodiscard]] int reader_of(const Copy& copy) const { return unshard::reader_of(copy, readers_, state_.comm.rank()); }
  [[nodiscard]] bool goes_alone(const Copy& copy) const;
  void place_messages(Round& round) const;

  MoveState& state_;
  const std::vector<int>& readers_;
  const Budget& budget_;
  std::uint64_t least_alone_bytes_;
  std::vector<Run> steps_;
  std::uint64_t rounds_ = 0;
};

}  // namespace unshard
