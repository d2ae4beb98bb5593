// send_chunks: every rank gets the chunk records that its runs need, from the ranks where the records live.
#include <algorithm>
#include <cstring>
#include <string>

#include "assemble.h"
#include "unshard/agree.h"
#include "unshard/error.h"
#include "unshard/move.h"

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
      : targets_(targets), plan_(plan), local_(table_of(catalog.chunks, catalog.tensors.size())), local_parts_(catalog.tensors, targets, plan, local_) {}

  [[nodiscard]] std::vector<Chunk> needed_by(int rank) {
    std::vector<std::uint64_t> numbers;  // of records in local_
    for (const Run& run : plan_.runs[static_cast<std::size_t>(rank)]) add_run(run, numbers);
    std::sort(numbers.begin(), numbers.end());
    numbers.erase(std::unique(numbers.begin(), numbers.end()), numbers.end());
    std::vector<Chunk> chunks;
    chunks.reserve(numbers.size());
    for (const std::uint64_t number : numbers) chunks.push_back(local_.chunks[number]);
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
      // A run holds most of its targets whole, and then every record of their sources is needed; of the first and the last one it may have only some rows.
      if (end - begin == placed.size_bytes) {
        for (const Term& term : target.terms)
          for (std::uint64_t number = local_.first[term.source]; number < local_.first[term.source + 1]; ++number) numbers.push_back(number);
      } else {
        const std::uint64_t size = info(target.dtype).size_bytes;
        add_elements(target, (begin - placed.position) / size, (end - placed.position + size - 1) / size, numbers);
      }
    }
  }

  void add_elements(const Target& target, std::uint64_t first, std::uint64_t end, std::vector<std::uint64_t>& numbers) {
    for (const Box& box : boxes_of_range(target.shape, first, end)) {
      for_each_part(target, box, [&](const Part& part) {
        for (const Chunk& chunk : local_parts_.near(part))
          if (may_meet(chunk, part)) numbers.push_back(static_cast<std::uint64_t>(&chunk - local_.chunks.data()));
      });
    }
  }

  const Targets& targets_;
  const Plan& plan_;
  ChunkTable local_;
  Assembler local_parts_;
};

Bytes to_bytes(const std::vector<Chunk>& chunks) {
  const auto* bytes = reinterpret_cast<const std::byte*>(chunks.data());
  return Bytes(bytes, bytes + chunks.size() * sizeof(Chunk));
}

}  // namespace

ChunkTable send_chunks(Comm& comm, const Catalog& catalog, const Targets& targets, const Plan& plan) {
  std::vector<Bytes> to_each = collectively(comm, "plan", [&] {
    if (plan.ranks != comm.size())
      throw Error(ErrorCode::internal, "the plan is for " + std::to_string(plan.ranks) + " ranks, there are " + std::to_string(comm.size()));
    Selector selector(catalog, targets, plan);
    std::vector<Bytes> parts;
    for (int rank = 0; rank < comm.size(); ++rank) parts.push_back(to_bytes(selector.needed_by(rank)));
    return parts;
  });
  const std::vector<Bytes> from_each = comm.all_to_all(std::move(to_each));
  // Each tensor's records come from one rank, sorted; the home ranks hold ascending blocks of tensors.
  std::vector<Chunk> chunks;
  for (const Bytes& bytes : from_each) {
    const std::size_t before = chunks.size();
    chunks.resize(before + bytes.size() / sizeof(Chunk));
    if (!bytes.empty()) std::memcpy(chunks.data() + before, bytes.data(), bytes.size());
  }
  std::stable_sort(chunks.begin(), chunks.end(), [](const Chunk& a, const Chunk& b) { return a.tensor < b.tensor; });
  return table_of(std::move(chunks), catalog.tensors.size());
}

}  // namespace unshard
