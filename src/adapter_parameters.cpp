#include "adapter_parameters.h"

#include <algorithm>
#include <optional>

#include "adapter_output.h"
#include "lora_bases.h"
#include "names.h"
#include "unshard/error.h"

namespace unshard {
namespace {

class Search {
 public:
  Search(const std::vector<TensorRow>& table, const ModelConfig& config, const MapOptions& options, const AdapterUse& use)
      : table_(table), use_(use), context_(make_context(table, config, options)), bases_(context_, parts(table)) {}

  void add(const PairsOfModule& of, StoredParameters& found) const {
    const auto parameters = find(of);
    if (!parameters && (of.pairs.size() > 1 || of.pairs.front()->depth > 0)) refuse(of);
    for (std::size_t i = 0; parameters && i < of.pairs.size(); ++i) found.of_pairs[of.pairs[i]->a] = (*parameters)[i];
  }

  /// The parameters by their last elements, where those mean no others; else by full names.
  [[nodiscard]] std::vector<std::string> targets(const StoredParameters& found) const {
    if (!use_.config.target_parameters.empty()) return use_.config.target_parameters;
    std::set<std::string> adapted, all;
    for (const auto& [id, parameter] : found.of_pairs) adapted.insert(parameter.peft_name);
    for (const auto& [name, id] : bases_.all())
      if (!name.ends_with(".weight") && !name.ends_with(".bias")) all.insert(name);
    return target_modules(adapted, all);
  }

 private:
  static std::set<TensorId> parts(const std::vector<TensorRow>& table) {
    std::set<TensorId> ids;
    for (TensorId id = 0; id < table.size(); ++id)
      if (is_lora(table[id].name) || is_saved_module(table[id].name)) ids.insert(id);
    return ids;
  }

  /// None for a module that is adapted as a whole.
  [[nodiscard]] std::optional<std::vector<Parameter>> find(const PairsOfModule& of) const {
    if (auto fit = fit_parameters(context_, use_.config, bases_, of)) {
      require_certain(*fit, use_.config, of);
      return std::move(fit->parameters);
    }
    const bool has_usual_rank = of.pairs.size() == 1 && rank_of(use_.config, of.module) == of.pairs.front()->rank;
    if (has_base(of.module) || has_usual_rank) return std::nullopt;
    return parameters_by_config(use_.config, of);
  }

  /// Whether the checkpoint has the weights of a module.
  [[nodiscard]] bool has_base(const std::string& module) const {
    const auto first = bases_.all().lower_bound(module + ".");
    return first != bases_.all().end() && first->first.starts_with(module + ".");
  }

  [[noreturn]] void refuse(const PairsOfModule& of) const {
    throw Error(ErrorCode::unsupported, printable(table_[of.pairs.front()->a].name) + ": nothing says which parameters of " +
                                            printable(of.module) + " its LoRA pairs stand for; put the adapter_config.json that PEFT has " +
                                            "written, with target_parameters, beside the checkpoint, or leave it out with --lora drop");
  }

  const std::vector<TensorRow>& table_;
  const AdapterUse& use_;
  const MapContext context_;
  const BaseTensors bases_;
};

}  // namespace

StoredParameters stored_parameters(const std::vector<TensorRow>& table, const ModelConfig& config, const MapOptions& options,
                                   const AdapterUse& use, const std::set<std::string>& modules) {
  StoredParameters found;
  std::optional<Search> search;
  for (const auto& [module, pairs] : pairs_by_module(use.adapter)) {
    if (modules.contains(module)) continue;
    if (!search) search.emplace(table, config, options, use);
    search->add({module, module, pairs}, found);
  }
  found.targets = search && !found.of_pairs.empty() ? search->targets(found) : use.config.target_parameters;
  return found;
}

}  // namespace unshard
