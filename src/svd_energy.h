// How much of the differences of two models the pairs of an extracted adapter hold: said to the user, and in the report.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "svd_pairs.h"
#include "unshard/merge.h"

namespace unshard {

/// What one layer kept.
struct Energy {
  std::uint64_t pair = 0;
  double square_norm = 0, captured = 0;  ///< squares of Frobenius norms: of the difference, and of what the pair makes of it
  [[nodiscard]] double part() const { return square_norm == 0 ? 1 : captured / square_norm; }
};

/// Local. A JSON array, one object for each pair. `energies` by pair.
[[nodiscard]] std::string modules_json(const Differences& found, const std::vector<Energy>& energies);

/// Local. Rank 0 speaks.
void say_energies(const Session& session, const Differences& found, const std::vector<Energy>& energies);

}  // namespace unshard
