#include "adapter_settings.h"

#include <array>
#include <set>

#include "input.h"
#include "lora_parameters.h"
#include "names.h"
#include "unshard/agree.h"

namespace unshard {
namespace {

// verl writes lora_train_meta.json into the actor's folder (checkpoint manager) or the step's (SFT handler), and earlier releases the whole
// adapter into lora_adapter/ (verl/model_merger/base_model_merger.py, verl/utils/checkpoint). ms-swift copies args.json into the folder of
// each step, Megatron-Bridge writes run_config.yaml there; both may lie in the run's folder only.
using Parse = std::optional<AdapterConfig> (*)(std::string_view text, const std::string& path);
struct Place {
  const char* name;
  Parse parse;
};

constexpr std::array<Place, 5> places{
    {{"lora_train_meta.json",
      [](std::string_view text, const std::string& path) { return std::optional(parse_training_meta(text, path)); }},
     {"adapter_config.json",
      [](std::string_view text, const std::string& path) { return std::optional(parse_adapter_config(text, path)); }},
     {"lora_adapter/adapter_config.json",
      [](std::string_view text, const std::string& path) { return std::optional(parse_adapter_config(text, path)); }},
     {"args.json", parse_swift_args},
     {"run_config.yaml", parse_bridge_config}}};

std::vector<std::string> folders_of(const Source& source) {
  std::vector<std::string> folders{source.folder};
  if (const std::string parent = parent_path(source.folder); !parent.empty() && parent != source.folder) folders.push_back(parent);
  return folders;
}

/// Collective.
std::optional<AdapterConfig> find_settings(const Session& session, const Source& source) {
  for (const std::string& folder : folders_of(source)) {
    for (const Place& place : places) {
      const std::string path = join_path(folder, place.name);
      const auto here = collectively(session.comm, "adapter", [&] { return session.files.status(path).has_value(); });
      if (session.comm.reduce_all(here ? 1 : 0, Reduction::max) == 0) continue;
      const SharedText shared = read_shared_text(session, path, "adapter");
      auto settings = collectively(session.comm, "adapter", [&] { return place.parse(shared.text, path); });
      if (settings) return settings;
    }
  }
  return std::nullopt;
}

/// What Megatron's arguments say, where no file says it. The two facts stand alone: an alpha that is no whole number is asked of the user,
/// and scaled as the training did.
void take_facts(const Facts& facts, AdapterConfig& config) {
  if (config.alpha) return;
  if (const auto alpha = facts.find(alpha_fact); alpha != facts.end()) config.alpha = static_cast<double>(alpha->second);
  if (facts.contains(rank_stabilised_fact)) config.rank_stabilised = true;
}

/// How many modules a pair adapts.
std::uint64_t modules_of(const LoraPair& pair) {
  return volume(pair.stack);
}

std::string number_text(double value) {
  std::string text = std::to_string(value);
  text.erase(text.find_last_not_of('0') + 1);
  if (text.back() == '.') text.pop_back();
  return text;
}

}  // namespace

std::vector<AdapterUse> adapters_in(const Session& session, const Source& source, const Catalog& catalog,
                                    const std::optional<double>& alpha) {
  std::vector<Adapter> adapters = collectively(session.comm, "adapter", [&] {
    TensorId end = 0;
    while (end < catalog.tensors.size() && catalog.tensors[end].origin == 0) ++end;
    return find_adapters(catalog.tensors, 0, end, false, !source.names_are_published);
  });
  if (adapters.empty()) return {};
  AdapterConfig config = find_settings(session, source).value_or(AdapterConfig{});
  if (config.path.empty()) config.path = source.folder;
  take_facts(catalog.facts, config);
  if (alpha) {
    config.alpha = alpha;
    config.alpha_pattern.clear();
  }
  std::vector<AdapterUse> uses;
  for (Adapter& adapter : adapters) {
    const std::string label = adapter.name.empty() ? source.folder : adapter.name;
    uses.push_back({label, std::move(adapter), config, 1});
  }
  return uses;
}

void leave_out_dropped(const std::vector<TensorRow>& table, const std::vector<std::string>& globs, std::vector<AdapterUse>& uses) {
  const auto is_dropped = [&](TensorId id) {
    const std::string& name = table[id].name;
    return any_glob_matches(globs, name) || any_glob_matches(globs, without_wrappers(name));
  };
  const auto is_pair_dropped = [&](const LoraPair& pair) {
    if (is_dropped(pair.a) == is_dropped(pair.b)) return is_dropped(pair.a);
    throw Error(ErrorCode::usage, "--drop: leaves out one matrix of the LoRA pair of " + printable(pair.module) +
                                      " and not the other; leave out both, or none");
  };
  const auto is_replacement_dropped = [&](const Replacement& one) { return is_dropped(one.tensor); };
  for (AdapterUse& use : uses) {
    std::erase_if(use.adapter.pairs, is_pair_dropped);
    std::erase_if(use.adapter.replacements, is_replacement_dropped);
    std::erase_if(use.adapter.token_rows, is_replacement_dropped);
  }
  std::erase_if(uses, [](const AdapterUse& use) {
    return use.adapter.pairs.empty() && use.adapter.replacements.empty() && use.adapter.token_rows.empty();
  });
}

std::string describe(const AdapterUse& use) {
  std::set<std::uint64_t> ranks;
  const std::set<double> alphas = alphas_of(use);
  std::set<std::string> targets;
  std::uint64_t pairs = 0;
  for (const LoraPair& pair : use.adapter.pairs) {
    pairs += modules_of(pair);
    ranks.insert(pair.rank);
    targets.insert(pair.module.substr(pair.module.rfind('.') + 1) + (pair.projection.empty() ? "" : "." + pair.projection));
  }
  std::string text = "LoRA adapter" + (use.adapter.name.empty() ? "" : " '" + printable(use.adapter.name) + "'") + ": " +
                     std::to_string(pairs) + " pairs, rank ";
  for (const std::uint64_t rank : ranks) text += (rank == *ranks.begin() ? "" : ", ") + std::to_string(rank);
  text += ", alpha ";
  if (alphas.empty()) text += "unknown";
  for (const double alpha : alphas) text += (alpha == *alphas.begin() ? "" : ", ") + number_text(alpha);
  return text + ", targets " + name_list({targets.begin(), targets.end()}, 12);
}

}  // namespace unshard
