#include "svd_pairs.h"

#include <algorithm>
#include <array>
#include <unordered_map>
#include <unordered_set>

#include "names.h"
#include "unshard/agree.h"

namespace unshard {
namespace {

/// Of other embeddings, and of a head that classifies.
constexpr std::array<std::string_view, 5> other_endings{"wpe.weight", "embeddings.weight", "embedding.weight", "embed_positions.weight",
                                                        "score.weight"};

bool is_linear(const TensorRow& row) {
  if (row.shape.size() != 2 || !row.name.ends_with(".weight") || !info(row.dtype).castable || row.dtype == DType::f64) return false;
  return !is_of_vocabulary(row.name) &&
         std::ranges::none_of(other_endings, [&](std::string_view ending) { return row.name.ends_with(ending); });
}

SvdPair pair_of(const std::vector<TensorRow>& table, TensorId base, TensorId tuned, bool transposed, std::uint64_t rank) {
  const TensorRow& row = table[tuned];
  SvdPair pair;
  pair.module = row.name.substr(0, row.name.rfind('.'));
  pair.transposed = transposed;
  pair.rank = std::min({rank, row.shape[0], row.shape[1]});
  pair.difference = {row.name, DType::f32, row.shape, {copy_of(tuned, row.shape)}, {}};
  Computation minus;
  minus.addends.push_back({-1, 0, 0, {row.shape[0], row.shape[1], copy_of(base, row.shape)}, std::nullopt});
  pair.difference.computation = std::make_shared<const Computation>(std::move(minus));
  return pair;
}

}  // namespace

Differences find_differences(const Session& session, FileCache& files, const Catalog& catalog, const std::vector<std::string>& transposed,
                             std::uint64_t rank) {
  const std::vector<TensorRow>& table = catalog.tensors;
  std::unordered_map<std::string, TensorId> base;
  std::unordered_set<std::string> tuned_names;
  for (TensorId id = 0; id < table.size(); ++id) {
    if (table[id].origin == 0) {
      base.emplace(table[id].name, id);
    } else {
      tuned_names.insert(table[id].name);
    }
  }
  Differences found;
  for (TensorId id = 0; id < table.size(); ++id) {
    const TensorRow& row = table[id];
    if (row.origin == 0) {
      if (!tuned_names.contains(row.name)) found.missing.push_back(row.name);
      continue;
    }
    const auto same = base.find(row.name);
    if (same == base.end() || !(table[same->second].shape == row.shape)) {
      found.whole.push_back(id);
      continue;
    }
    const TensorRow& of_base = table[same->second];
    const bool comparable = of_base.dtype == row.dtype || (info(of_base.dtype).castable && info(row.dtype).castable);
    const DType as = of_base.dtype == row.dtype ? row.dtype : DType::f32;
    if (comparable && same_bits(session.comm, files, catalog, same->second, id, row.shape, as)) {
      found.unchanged.push_back(row.name);
    } else if (is_linear(row) && is_linear(of_base)) {
      found.pairs.push_back(pair_of(table, same->second, id, any_glob_matches(transposed, row.name), rank));
    } else {
      found.whole.push_back(id);
    }
  }
  return found;
}

AdapterOutput svd_output(const std::vector<TensorRow>& table, const Differences& found, std::uint64_t rank, const std::string& base_model,
                         const std::string& task_type, DType dtype) {
  constexpr const char* prefix = "base_model.model.";
  AdapterOutput output;
  AdapterFacts facts;
  std::set<std::string> modules, all;
  for (const TensorRow& row : table)
    if (row.origin == 1 && is_linear(row)) all.insert(row.name.substr(0, row.name.rfind('.')));
  facts.rank = 0;
  for (const SvdPair& pair : found.pairs) facts.rank = std::max(facts.rank, pair.rank);
  if (facts.rank == 0) facts.rank = rank;
  facts.alpha = static_cast<double>(facts.rank);  // so the scale is 1
  for (const SvdPair& pair : found.pairs) {
    const Shape& shape = pair.difference.shape;
    const std::uint64_t out = shape[pair.transposed ? 1 : 0], in = shape[pair.transposed ? 0 : 1];
    output.targets.push_back({prefix + pair.module + ".lora_A.weight", dtype, {pair.rank, in}, {}, {}});
    output.targets.push_back({prefix + pair.module + ".lora_B.weight", dtype, {out, pair.rank}, {}, {}});
    modules.insert(pair.module);
    if (pair.rank == facts.rank) continue;
    facts.rank_pattern.emplace_back(pair.module, static_cast<double>(pair.rank));
    facts.alpha_pattern.emplace_back(pair.module, static_cast<double>(pair.rank));
  }
  for (const TensorId id : found.whole) {
    const TensorRow& row = table[id];
    const std::string module = row.name.substr(0, row.name.rfind('.'));
    std::string name = row.name;
    if (row.name.ends_with(".bias")) {
      facts.bias = "all";
      if (modules.contains(module)) name = module + ".base_layer.bias";
    } else if (std::find(facts.modules_to_save.begin(), facts.modules_to_save.end(), module) == facts.modules_to_save.end()) {
      facts.modules_to_save.push_back(module);
    }
    output.targets.push_back({prefix + name, row.dtype, row.shape, {copy_of(id, row.shape)}, {}});
  }
  facts.target_modules = target_modules(modules, all);
  facts.base_model = base_model;
  facts.task_type = task_type;
  output.config = adapter_config_text(facts);
  return output;
}

}  // namespace unshard
