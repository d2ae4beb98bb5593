#include "chunk_selector.h"

#include <algorithm>

namespace unshard {
namespace {

/// Whether the chunk's box holds elements between the first and the last of the part.
bool may_meet(const Chunk& chunk, const Part& part) {
  for (std::size_t d = 0; d < chunk.box.offset.size(); ++d) {
    const std::uint64_t begin = part.source_box.offset[d], last = begin + (part.source_box.extent[d] - 1) * part.source_step[d];
    if (chunk.box.offset[d] > last || chunk.box.offset[d] + chunk.box.extent[d] <= begin) return false;
  }
  return true;
}

}  // namespace

std::vector<std::uint64_t> ChunkSelector::needed_by(int first, int end) const {
  std::vector<std::uint64_t> numbers;
  for (int rank = first; rank < end; ++rank)
    for (const Run& run : plan_.runs[static_cast<std::size_t>(rank)]) add_run(run, numbers);
  std::sort(numbers.begin(), numbers.end());
  numbers.erase(std::unique(numbers.begin(), numbers.end()), numbers.end());
  return numbers;
}

void ChunkSelector::add_run(const Run& run, std::vector<std::uint64_t>& numbers) const {
  const auto [first, last] = placed_in(plan_, run.file, run.begin, run.end);
  for (std::size_t i = first; i < last; ++i) {
    const PlacedTarget& placed = plan_.layout.placed[i];
    const std::uint64_t begin = std::max(run.begin, placed.position), end = std::min(run.end, placed.position + placed.size_bytes);
    if (begin >= end) continue;
    const Target& target = targets_.targets[placed.target];
    // A run holds most of its targets whole, and then every record of their sources is needed; of the first and the last one it may have
    // only some rows.
    if (target.computation) add_factors(*target.computation, numbers);
    if (end - begin == placed.size_bytes) {
      for (const Term& term : target.terms)
        for (const Chunk& chunk : index_.of(term.source)) numbers.push_back(number_of(chunk));
    } else {
      const std::uint64_t size = info(target.dtype).size_bytes;
      add_elements(target, (begin - placed.position) / size, (end - placed.position + size - 1) / size, numbers);
    }
  }
}

/// All records of what is multiplied and added: of a stack of experts more than a run may need, but they are few.
void ChunkSelector::add_factors(const Computation& computation, std::vector<std::uint64_t>& numbers) const {
  const auto add = [&](const Factor& factor) {
    for (const Chunk& chunk : index_.of(factor.term.source)) numbers.push_back(number_of(chunk));
  };
  for (const Addend& addend : computation.addends) {
    add(addend.left);
    if (addend.right) add(*addend.right);
  }
}

void ChunkSelector::add_elements(const Target& target, std::uint64_t first, std::uint64_t end, std::vector<std::uint64_t>& numbers) const {
  for (const Box& box : boxes_of_range(target.shape, first, end)) {
    for_each_part(target, box, [&](const Part& part) {
      for (const Chunk& chunk : index_.near(part))
        if (may_meet(chunk, part)) numbers.push_back(number_of(chunk));
    });
  }
}

}  // namespace unshard
