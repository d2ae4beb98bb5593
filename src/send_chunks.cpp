// send_chunks: every rank gets the chunk records that its runs need, from the ranks where the records live.
#include <algorithm>
#include <cstddef>
#include <string>

#include "chunk_selector.h"
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

}  // namespace

std::pair<int, int> planned_ranks(int rank, int size, int planned) {
  const auto first_of = [&](int of) { return static_cast<int>((std::int64_t{of} * planned + size - 1) / size); };
  return {first_of(rank), first_of(rank + 1)};
}

ChunkTable send_chunks(Comm& comm, const Catalog& catalog, const Targets& targets, const Plan& plan) {
  collectively(comm, "plan", [&] {
    if (plan.ranks != comm.size())
      throw Error(ErrorCode::internal,
                  "the plan is for " + std::to_string(plan.ranks) + " ranks, there are " + std::to_string(comm.size()));
  });
  return send_planned_chunks(comm, catalog, targets, plan);
}

ChunkTable send_planned_chunks(Comm& comm, const Catalog& catalog, const Targets& targets, const Plan& plan) {
  std::vector<Bytes> to_each = collectively(comm, "plan", [&] {
    const ChunkSelector selector(catalog.chunks, catalog.tensors.size(), targets, plan);
    std::vector<Bytes> parts;
    for (int rank = 0; rank < comm.size(); ++rank) {
      const auto [first, end] = planned_ranks(rank, comm.size(), plan.ranks);
      std::vector<Chunk> chunks;
      for (const std::uint64_t number : selector.needed_by(first, end)) chunks.push_back(catalog.chunks[number]);
      parts.push_back(bytes_of(chunks));
    }
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
