#include "adapter_output.h"

#include <algorithm>
#include <cctype>
#include <map>
#include <nlohmann/json.hpp>

#include "adapter_input.h"
#include "adapter_parameters.h"
#include "families/families.h"
#include "lora_replacements.h"
#include "names.h"
#include "outputs/safetensors.h"
#include "published_pairs.h"
#include "unshard/error.h"
#include "unshard/file_system.h"
#include "unshard/mapping.h"
#include "unshard/output_format.h"

namespace unshard {
namespace {

constexpr const char* prefix = "base_model.model.";

std::string last_element(const std::string& name) {
  return name.substr(name.rfind('.') + 1);
}

/// A whole number as one, as PEFT writes it.
nlohmann::json number_of(double value) {
  if (value == static_cast<double>(static_cast<std::int64_t>(value))) return static_cast<std::int64_t>(value);
  return value;
}

nlohmann::json object_of(const std::vector<std::pair<std::string, double>>& pairs) {
  nlohmann::json object = nlohmann::json::object();
  for (const auto& [name, value] : pairs) object[name] = number_of(value);
  return object;
}

nlohmann::json list_or_null(const std::vector<std::string>& list) {
  return list.empty() ? nlohmann::json() : nlohmann::json(list);
}

nlohmann::json text_or_null(const std::string& text) {
  return text.empty() ? nlohmann::json() : nlohmann::json(text);
}

template <class Value>
Value most_frequent(const std::map<Value, std::size_t>& counts) {
  return std::max_element(counts.begin(), counts.end(), [](const auto& a, const auto& b) { return a.second < b.second; })->first;
}

class StoredAdapter {
 public:
  StoredAdapter(const std::vector<TensorRow>& table, const AdapterUse& use, const StoredParameters& parameters,
                const PairSplitter* splitter)
      : table_(table), use_(use), parameters_(parameters), splitter_(splitter) {}

  AdapterOutput make(const std::set<std::string>& base_modules) {
    for (const LoraPair& pair : use_.adapter.pairs) splitter_ != nullptr ? add_published(pair) : add(pair);
    for (const Replacement& one : use_.adapter.replacements) splitter_ != nullptr ? add_published(one) : add_replacement(one);
    if (splitter_ != nullptr) sort_targets();
    for (const Replacement& one : use_.adapter.token_rows) {
      const std::string module = one.name.substr(0, one.name.rfind('.'));
      add_target(module + ".token_adapter.trainable_tokens_delta", one.tensor);
    }
    if (!use_.adapter.token_rows.empty() && use_.config.token_rows.empty()) {
      throw Error(ErrorCode::bad_input,
                  printable(table_[use_.adapter.token_rows.front().tensor].name) +
                      ": nothing says which tokens these rows are for (trainable_token_indices of adapter_config.json)");
    }
    set_ranks();
    facts_.target_modules = target_modules(modules_, base_modules);
    facts_.token_rows = use_.config.token_rows;
    facts_.target_parameters = parameters_.targets;
    facts_.peft_version = use_.config.peft_version;
    facts_.base_model = use_.config.base_model;
    facts_.task_type = use_.config.task_type;
    facts_.bias = use_.config.bias;
    facts_.rank_stabilised = use_.config.rank_stabilised;
    facts_.inputs_first = use_.config.inputs_first;
    output_.config = adapter_config_text(facts_);
    return std::move(output_);
  }

 private:
  void add(const LoraPair& pair) {
    note_rank(pair);
    std::string module = pair.module;
    for (std::uint64_t i = 0; i < pair.depth; ++i) module += ".base_layer";
    add_target(module + (pair.embedding ? ".lora_embedding_A" : ".lora_A.weight"), pair.a);
    add_target(module + (pair.embedding ? ".lora_embedding_B" : ".lora_B.weight"), pair.b);
    if (pair.bias) add_target(module + ".lora_B.bias", *pair.bias);
    if (pair.magnitude) add_target(module + ".lora_magnitude_vector", *pair.magnitude);
    facts_.has_bias = facts_.has_bias || pair.bias;
    facts_.weights_decomposed = facts_.weights_decomposed || pair.magnitude;
  }

  /// By the name that PEFT matches patterns against. A pair of all experts of a layer holds the rank of each of them.
  void note_rank(const LoraPair& pair) {
    const auto parameter = parameters_.of_pairs.find(pair.a);
    const bool is_parameter = parameter != parameters_.of_pairs.end();
    const std::string name = is_parameter ? parameter->second.peft_name : adapted_name(use_.config, pair.module);
    const std::uint64_t rank = is_parameter ? pair.rank / parameter->second.experts : pair.rank;
    (void)scale_of(use_.config, name, rank);  // refuses an alpha that is unknown or 0
    ranks_[name] = rank;
    if (name == pair.module) modules_.insert(name);
  }

  /// Megatron's layers are fused and may be stacked: the pairs of single projections.
  void add_published(const LoraPair& stored) {
    for (PublishedPair& pair : splitter_->split(stored)) {
      (void)scale_of(use_.config, pair.module, pair.rank);
      const std::string module = prefix + pair.module;
      output_.targets.push_back({module + ".lora_A.weight", table_[stored.a].dtype, {pair.rank, pair.in}, {std::move(pair.a)}, {}});
      output_.targets.push_back({module + ".lora_B.weight", table_[stored.b].dtype, {pair.out, pair.rank}, std::move(pair.b), {}});
      for (const Target* target : {&output_.targets[output_.targets.size() - 2], &output_.targets.back()}) check_target(*target, table_);
      modules_.insert(pair.module);
      ranks_[pair.module] = pair.rank;
    }
  }

  void add_published(const Replacement& one) {
    const TensorRow& row = table_[one.tensor];
    const std::vector<Made> pieces = splitter_->pieces(one.name, row.shape);
    if (pieces.empty()) {
      throw Error(
          ErrorCode::unsupported,
          printable(row.name) + ": no rule says what this module's full copy is published as; `merge --lora drop` leaves the adapter out");
    }
    for (const Made& piece : pieces) {
      Target target{prefix + piece.name, row.dtype, piece.shape, piece.terms, {}};
      for (Term& term : target.terms) term.source = one.tensor;
      if (piece.add != 0) target.computation = std::make_shared<const Computation>(Computation{{}, piece.add, {}, {}});
      output_.targets.push_back(std::move(target));
      note_saved(piece.name);
    }
  }

  void sort_targets() {
    std::stable_sort(output_.targets.begin(), output_.targets.end(),
                     [](const Target& a, const Target& b) { return natural_less(a.name, b.name); });
  }

  void add_replacement(const Replacement& one) {
    add_target(one.name, one.tensor);
    note_saved(one.name);
  }

  void note_saved(const std::string& name) {
    if (name.ends_with(".bias") && use_.config.bias != "none") return;
    const std::string module = name.substr(0, name.rfind('.'));
    if (std::find(facts_.modules_to_save.begin(), facts_.modules_to_save.end(), module) == facts_.modules_to_save.end())
      facts_.modules_to_save.push_back(module);
  }

  void add_target(const std::string& name, TensorId id) {
    const TensorRow& row = table_[id];
    output_.targets.push_back({prefix + name, row.dtype, row.shape, {copy_of(id, row.shape)}, {}});
  }

  /// The rank and the alpha of most modules, and those of the others by name.
  void set_ranks() {
    std::map<std::uint64_t, std::size_t> ranks;
    std::map<double, std::size_t> alphas;
    for (const auto& [module, rank] : ranks_) {
      ++ranks[rank];
      ++alphas[*alpha_of(use_.config, module)];
    }
    if (ranks_.empty()) {
      facts_.rank = static_cast<std::uint64_t>(use_.config.rank.value_or(8));
      facts_.alpha = use_.config.alpha.value_or(static_cast<double>(facts_.rank));
      return;
    }
    facts_.rank = most_frequent(ranks);
    facts_.alpha = most_frequent(alphas);
    for (const auto& [module, rank] : ranks_) {
      const double alpha = *alpha_of(use_.config, module);
      if (rank != facts_.rank) facts_.rank_pattern.emplace_back(module, static_cast<double>(rank));
      if (alpha != facts_.alpha) facts_.alpha_pattern.emplace_back(module, alpha);
    }
  }

  const std::vector<TensorRow>& table_;
  const AdapterUse& use_;
  const StoredParameters& parameters_;
  const PairSplitter* splitter_;
  AdapterOutput output_;
  AdapterFacts facts_;
  std::set<std::string> modules_;
  std::map<std::string, std::uint64_t> ranks_;  ///< by module, or bare parameter
};

}  // namespace

std::string adapter_config_text(const AdapterFacts& facts) {
  nlohmann::json config{{"peft_type", "LORA"},
                        {"auto_mapping", nullptr},
                        {"base_model_name_or_path", text_or_null(facts.base_model)},
                        {"bias", facts.bias},
                        {"fan_in_fan_out", facts.inputs_first},
                        {"inference_mode", true},
                        {"init_lora_weights", true},
                        {"layers_pattern", nullptr},
                        {"layers_to_transform", nullptr},
                        {"lora_alpha", number_of(facts.alpha)},
                        {"lora_dropout", 0.0},
                        {"modules_to_save", list_or_null(facts.modules_to_save)},
                        {"r", facts.rank},
                        {"rank_pattern", object_of(facts.rank_pattern)},
                        {"alpha_pattern", object_of(facts.alpha_pattern)},
                        {"revision", nullptr},
                        {"target_modules", facts.target_modules},
                        {"task_type", text_or_null(facts.task_type)},
                        {"use_dora", facts.weights_decomposed},
                        {"use_rslora", facts.rank_stabilised}};
  // Newer fields only where they say something: an older PEFT would warn of them.
  if (facts.has_bias) config["lora_bias"] = true;
  if (!facts.target_parameters.empty()) {
    config["target_parameters"] = facts.target_parameters;
    if (!facts.peft_version.empty()) config["peft_version"] = facts.peft_version;  // says which way round they are
  }
  if (!facts.token_rows.empty()) {
    nlohmann::json& rows = config["trainable_token_indices"];
    for (const auto& [module, numbers] : facts.token_rows) {
      if (module.empty()) {
        rows = numbers;
      } else {
        rows[module] = numbers;
      }
    }
  }
  return config.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

std::vector<std::string> target_modules(const std::set<std::string>& modules, const std::set<std::string>& all_modules) {
  std::set<std::string> endings;
  for (const std::string& module : modules) endings.insert(last_element(module));
  const bool endings_say_it = std::all_of(all_modules.begin(), all_modules.end(), [&](const std::string& module) {
    return modules.contains(module) || !endings.contains(last_element(module));
  });
  const std::set<std::string>& said = endings_say_it ? endings : modules;
  return {said.begin(), said.end()};
}

AdapterOutput adapter_as_stored(const std::vector<TensorRow>& table, const AdapterUse& use, const std::set<std::string>& base_modules,
                                const StoredParameters& parameters, const PairSplitter* splitter) {
  return StoredAdapter(table, use, parameters, splitter).make(base_modules);
}

std::set<std::string> base_modules_in(const std::vector<TensorRow>& table) {
  std::set<std::string> modules;
  for (const TensorRow& row : table) {
    if (row.shape.size() != 2 || is_lora(row.name) || is_saved_module(row.name)) continue;
    const std::string name = without_peft(without_wrappers(row.name));
    if (name.ends_with(".weight")) modules.insert(name.substr(0, name.rfind('.')));
  }
  return modules;
}

std::vector<AdapterOutput> adapters_beside(const std::vector<TensorRow>& table, const ModelConfig& config, const MapOptions& options,
                                           const std::vector<AdapterUse>& uses, const std::string& folder) {
  std::optional<MapContext> context;
  std::optional<PairSplitter> splitter;
  if (!options.names_are_published && !uses.empty()) {
    context.emplace(make_context(table, config, options));
    splitter.emplace(*context);
  }
  const std::set<std::string> modules = splitter ? splitter->modules() : base_modules_in(table);
  std::vector<AdapterOutput> outputs;
  for (const AdapterUse& use : uses) {
    const std::string& name = use.adapter.name;
    const bool is_plain = std::all_of(name.begin(), name.end(), [](unsigned char c) { return std::isalnum(c) || c == '_' || c == '-'; });
    if (!is_plain)
      throw Error(ErrorCode::bad_input,
                  "adapter '" + printable(name) + "': this name can't be that of a folder; `merge --lora drop` leaves it out");
    const StoredParameters parameters = splitter ? StoredParameters{} : stored_parameters(table, config, options, use, modules);
    AdapterUse written = use;
    if (use.adapter.token_rows.size() > 1)
      written.adapter.token_rows =
          own_rows(table, use, family_of(options.model_type.empty() ? config.model_type() : options.model_type, config).ties);
    outputs.push_back(adapter_as_stored(table, written, modules, parameters, splitter ? &*splitter : nullptr));
    outputs.back().folder = name.empty() || name == "default" ? folder : folder.empty() ? name : join_path(folder, name);
  }
  return outputs;
}

void append_adapters(const std::vector<AdapterOutput>& adapters, Targets& targets, Layout& layout) {
  for (const AdapterOutput& adapter : adapters) {
    const Targets own{adapter.targets, {}};
    Layout files = safetensors_output().lay_out(own, {std::uint64_t{1} << 62});
    const auto first_file = static_cast<std::uint32_t>(layout.files.size());
    const auto first_target = static_cast<std::uint32_t>(targets.targets.size());
    for (OutputFile& file : files.files) {
      file.name = adapter.folder.empty() ? adapter_weights_name : join_path(adapter.folder, adapter_weights_name);
      layout.files.push_back(std::move(file));
    }
    for (PlacedTarget placed : files.placed) {
      placed.file += first_file;
      placed.target += first_target;
      layout.placed.push_back(placed);
    }
    targets.targets.insert(targets.targets.end(), adapter.targets.begin(), adapter.targets.end());
  }
}

}  // namespace unshard
