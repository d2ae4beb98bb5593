#include "catalog_summary.h"

#include <algorithm>
#include <set>

#include "unshard/mapping.h"
#include "wire.h"

namespace unshard {
namespace {

/// The parts of a dotted name.
std::vector<std::string_view> parts_of(std::string_view name) {
  std::vector<std::string_view> parts;
  for (std::size_t begin = 0; begin <= name.size();) {
    const std::size_t dot = std::min(name.find('.', begin), name.size());
    parts.push_back(name.substr(begin, dot - begin));
    begin = dot + 1;
  }
  return parts;
}

/// Which dimension of a LoRA matrix is the adapter's rank, counted from the end: A is (rank, in), B is (out, rank); embeddings the other
/// way round are stored as such. 0: the name doesn't tell.
std::size_t rank_dim_from_end(std::string_view name) {
  if (name.find("lora_A") != std::string_view::npos || name.find("lora_embedding_A") != std::string_view::npos ||
      name.find("linear_in") != std::string_view::npos)
    return 2;
  if (name.find("lora_B") != std::string_view::npos || name.find("lora_embedding_B") != std::string_view::npos ||
      name.find("linear_out") != std::string_view::npos)
    return 1;
  return 0;
}

}  // namespace

std::vector<StoredAs> stored_as(Comm& comm, const Catalog& catalog) {
  std::vector<StoredAs> stored(catalog.tensors.size());
  for (const Chunk& chunk : catalog.chunks) {
    StoredAs& of = stored[chunk.tensor];
    ++of.chunks;
    for (std::size_t d = 0; d < chunk.box.extent.size(); ++d) {
      if (chunk.box.extent[d] != catalog.tensors[chunk.tensor].shape[d]) of.cut_dims |= 1U << d;
    }
  }
  WireWriter mine;
  for (TensorId id = 0; id < stored.size(); ++id) {
    if (stored[id].chunks == 0) continue;  // its records are on another rank
    mine.number(id);
    mine.number(stored[id].chunks);
    mine.number(stored[id].cut_dims);
  }
  for (const Bytes& bytes : comm.gather_all(mine.take())) {
    for (WireReader in(bytes); !in.at_end();) {
      StoredAs& of = stored.at(in.number());
      of.chunks = static_cast<std::uint32_t>(in.number_up_to(UINT32_MAX));
      of.cut_dims = static_cast<std::uint32_t>(in.number_up_to(UINT32_MAX));
    }
  }
  return stored;
}

std::string to_string(const StoredAs& stored) {
  if (stored.chunks == 0) return "no elements";
  std::string dims;
  for (std::size_t d = 0; d < max_rank; ++d) {
    if ((stored.cut_dims >> d & 1U) != 0) dims += (dims.empty() ? "" : ", ") + std::to_string(d);
  }
  if (dims.empty()) return "whole";
  return "Shard(" + dims + ") in " + counted(stored.chunks, "chunk");
}

LoraSummary lora_summary(const std::vector<TensorRow>& table) {
  LoraSummary summary;
  std::set<std::uint64_t> ranks;
  std::set<std::string> targets;
  for (const TensorRow& row : table) {
    if (!is_lora(row.name)) continue;
    ++summary.tensors;
    const std::size_t from_end = rank_dim_from_end(row.name);
    if (from_end > 0 && row.shape.size() >= 2) ranks.insert(row.shape[row.shape.size() - from_end]);
    const auto parts = parts_of(row.name);
    const auto lora = std::ranges::find_if(parts, [](std::string_view part) { return part.starts_with("lora_") || part == "adapter"; });
    if (lora != parts.end() && lora != parts.begin()) targets.insert(std::string(*(lora - 1)));
  }
  summary.ranks.assign(ranks.begin(), ranks.end());
  summary.targets.assign(targets.begin(), targets.end());
  return summary;
}

}  // namespace unshard
