// The elements of a target, gathered naively: what a merge writes, on tensors small enough to write down.
#pragma once

#include <cstdint>
#include <numeric>
#include <stdexcept>
#include <string>
#include <vector>

#include "unshard/targets.h"

namespace unshard::testing_support {

/// A tensor of small numbers, row-major.
struct Numbers {
  Shape shape;
  std::vector<std::uint64_t> values;
};

/// first, first + 1, …
inline Numbers counted(const Shape& shape, std::uint64_t first = 0) {
  Numbers numbers{shape, std::vector<std::uint64_t>(volume(shape))};
  std::iota(numbers.values.begin(), numbers.values.end(), first);
  return numbers;
}

inline std::uint64_t place_of(const Shape& index, const Shape& shape) {
  std::uint64_t at = 0;
  for (std::size_t d = 0; d < shape.size(); ++d) at = at * shape[d] + index[d];
  return at;
}

/// Through for_each_part, the whole target at once. Throws std::logic_error for an element that is written twice or never.
inline std::vector<std::uint64_t> gathered(const Target& target, const std::vector<Numbers>& sources) {
  constexpr std::uint64_t hole = ~std::uint64_t{0};
  std::vector<std::uint64_t> out(volume(target.shape), hole);
  for_each_part(target, whole(target.shape), [&](const Part& part) {
    for (std::uint64_t n = 0; n < volume(part.target_box.extent); ++n) {
      Shape to = part.target_box.offset;
      Shape from = part.source_box.offset;
      std::uint64_t rest = n;
      for (std::size_t d = target.shape.size(); d-- > 0;) {
        const std::uint64_t i = rest % part.target_box.extent[d];
        rest /= part.target_box.extent[d];
        to[d] += i * part.target_step[d];
        if (part.source_dim[d] >= 0) from[part.source_dim[d]] += i * part.source_step[part.source_dim[d]];
      }
      std::uint64_t& element = out.at(place_of(to, target.shape));
      if (element != hole) throw std::logic_error("written twice");
      element = sources.at(part.source).values.at(place_of(from, sources.at(part.source).shape));
    }
  });
  for (const std::uint64_t element : out) {
    if (element == hole) throw std::logic_error("not written");
  }
  return out;
}

}  // namespace unshard::testing_support
