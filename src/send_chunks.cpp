// send_chunks: every rank gets the chunk records that its runs need, from the ranks where the records live.
#include <algorithm>
#include <cstddef>
#include <string>

#include "assemble.h"
#include "unshard/agree.h"
#include "unshard/error.h"
#include "unshard/move.h"
#include "value_bytes.h"

namespace unshard {
namespace {

ChunkTable table_of(std::vector<Chunk> chunks, std::size_t tensor_count) {
  ChunkTable table;
  table.first.assign(tensor_count + 1, 0);
  for (const Chunk& chunk : chunks) ++table.first[chunk.tensor + 1];
  for (std::size_t t = 0; t < tensor_count; ++t) table.first[t + 1] += table.first[t];
  table.chunks = std::move(chunks);
  return table;
}

/// Whether the chunk's box holds elements between the first and the last of the part.
bool may_meet(const Chunk& chunk, const Part& part) {
  for (std::size_t d = 0; d < chunk.box.offset.size(); ++d) {
    const std::uint64_t begin = part.source_box.offset[d], last = begin + (part.source_box.extent[d] - 1) * part.source_step[d];
    if (chunk.box.offset[d] > last || chunk.box.offset[d] + chunk.box.extent[d] <= begin) return false;
  }
  return true;
}

/// Finds the records that live here and that a rank needs.
class Selector {
 public:
  Selector(const Catalog& catalog, const Targets& targets, const Plan& plan)
      : targets_(targets), plan_(plan), chunks_(catalog.chunks), index_(catalog.chunks, catalog.tensors.size()) {}

  [[nodiscard]] std::vector<Chunk> needed_by(int rank) {
    std::vector<std::uint64_t> numbers;  // positions in chunks_
    for (const Run& run : plan_.runs[static_cast<std::size_t>(rank)]) add_run(run, numbers);
    std::sort(numbers.begin(), numbers.end());
    numbers.erase(std::unique(numbers.begin(), numbers.end()), numbers.end());
    std::vector<Chunk> chunks;
    chunks.reserve(numbers.size());
    for (const std::uint64_t number : numbers) chunks.push_back(chunks_[number]);
    return chunks;
  }

 private:
  void add_run(const Run& run, std::vector<std::uint64_t>& numbers) {
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
  void add_factors(const Computation& computation, std::vector<std::uint64_t>& numbers) {
    const auto add = [&](const Factor& factor) {
      for (const Chunk& chunk : index_.of(factor.term.source)) numbers.push_back(number_of(chunk));
    };
    for (const Addend& addend : computation.addends) {
      add(addend.left);
      if (addend.right) add(*addend.right);
    }
  }

  void add_elements(const Target& target, std::uint64_t first, std::uint64_t end, std::vector<std::uint64_t>& numbers) {
    for (const Box& box : boxes_of_range(target.shape, first, end)) {
      for_each_part(target, box, [&](const Part& part) {
        for (const Chunk& chunk : index_.near(part))
          if (may_meet(chunk, part)) numbers.push_back(number_of(chunk));
      });
    }
  }

  [[nodiscard]] std::uint64_t number_of(const Chunk& chunk) const { return static_cast<std::uint64_t>(&chunk - chunks_.data()); }

  const Targets& targets_;
  const Plan& plan_;
  const std::vector<Chunk>& chunks_;
  ChunkIndex index_;
};

}  // namespace

ChunkTable send_chunks(Comm& comm, const Catalog& catalog, const Targets& targets, const Plan& plan) {
  std::vector<Bytes> to_each = collectively(comm, "plan", [&] {
    if (plan.ranks != comm.size())
      throw Error(ErrorCode::internal,
                  "the plan is for " + std::to_string(plan.ranks) + " ranks, there are " + std::to_string(comm.size()));
    Selector selector(catalog, targets, plan);
    std::vector<Bytes> parts;
    for (int rank = 0; rank < comm.size(); ++rank) parts.push_back(bytes_of(selector.needed_by(rank)));
    return parts;
  });
  std::vector<Bytes> from_each = comm.all_to_all(std::move(to_each));
  std::size_t bytes_in_all = 0;
  for (const Bytes& bytes : from_each) bytes_in_all += bytes.size();
  std::vector<Chunk> chunks;
  chunks.reserve(bytes_in_all / sizeof(Chunk));
  for (Bytes& bytes : from_each) {  // freed one by one: there may be millions of records
    append_values(chunks, bytes);
    bytes = {};
  }
  // Each tensor's records come from one rank, sorted; where home ranks hold ascending blocks of tensors, nothing is left to do.
  const auto by_tensor = [](const Chunk& a, const Chunk& b) { return a.tensor < b.tensor; };
  if (!std::is_sorted(chunks.begin(), chunks.end(), by_tensor)) std::stable_sort(chunks.begin(), chunks.end(), by_tensor);
  return table_of(std::move(chunks), catalog.tensors.size());
}

}  // namespace unshard
