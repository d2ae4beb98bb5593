// Internal to the arithmetic library: low_rank.cpp.
#pragma once

#include "unshard/arithmetic.h"

namespace unshard {

/// See Arithmetic::approximate.
[[nodiscard]] LowRank approximate(std::uint64_t rows, std::uint64_t columns, std::uint64_t rank,
                                  const std::function<void(std::uint64_t first_row, std::span<float> block)>& read);

}  // namespace unshard
