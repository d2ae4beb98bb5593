// plan_adapters: which tensor each part of an adapter belongs to.
//
// The module of a pair is looked for under its own name, then with another prefix that makes all modules of the adapter that begin like it
// fit (a model saved as part of another one), then as the family's rules name it in files (one tensor per expert). A pair without a module
// of its own stands for a bare parameter (PEFT's target_parameters), which is found by its shapes.
#include <algorithm>
#include <array>
#include <set>

#include "adapter_input.h"
#include "lora_modules.h"
#include "lora_replacements.h"
#include "mapping_steps.h"
#include "names.h"
#include "published_pairs.h"
#include "unshard/error.h"

namespace unshard {
namespace {

class Planner {
 public:
  Planner(const MapContext& context, const AdapterUse& use, AdapterPlan& plan, BaseTensors& bases)
      : context_(context), use_(use), plan_(plan), bases_(bases) {}

  void run() {
    const bool of_megatron = !context_.options.names_are_published;
    const ModuleNames names = of_megatron ? ModuleNames(context_) : find_modules(context_, use_, bases_);
    for (const Replacement& one : use_.adapter.replacements) replace(one, names);
    for (const Replacement& one : use_.adapter.token_rows) plan_.left_out[one.tensor] = "its rows replace rows of the embedding";
    for (const Replacement& one : own_rows(context_.table, use_, context_.family.ties)) replace_rows(one, names);
    if (of_megatron) return add_published();
    for (const LoraPair& pair : use_.adapter.pairs) add(pair, names);
  }

 private:
  [[nodiscard]] const TensorRow& row(TensorId id) const { return context_.table[id]; }

  void replace(const Replacement& one, const ModuleNames& names) {
    const std::string name = replaced_name(context_, use_.config, bases_, names, one).value_or(names.renamed(one.name));
    if (const auto base = bases_.find(name); base && !bases_.is_tied_head(name)) {
      if (bases_.is_replacement(*base)) {
        throw Error(ErrorCode::bad_input, printable(name) + ": two adapters hold a full copy of it (" + printable(row(*base).name) +
                                              " and " + printable(row(one.tensor).name) + "); only one can be used");
      }
      if (!keeps_as_head(name, *base, one)) plan_.left_out[*base] = "replaced by the adapter's " + row(one.tensor).name;
    }
    plan_.names[one.tensor] = name;
    bases_.replace(name, one.tensor);
  }

  /// A tied model whose embedding alone was trained whole: while it ran with the adapter, its head was the embedding of the base.
  bool keeps_as_head(const std::string& name, TensorId base, const Replacement& one) {
    if (!bases_.is_tied_embedding(name) || use_.config.ties_weights || !(row(base).shape == row(one.tensor).shape)) return false;
    if (!bases_.is_tied_head(bases_.head())) return false;
    plan_.names[base] = bases_.head();
    bases_.replace(bases_.head(), base);
    return true;
  }

  void replace_rows(const Replacement& one, const ModuleNames& names) {
    const TensorRow& delta = row(one.tensor);
    const std::string module = one.name.substr(0, one.name.size() - std::string_view(".weight").size());
    const auto name = replaced_name(context_, use_.config, bases_, names, one);
    if (!name) throw Error(ErrorCode::bad_input, printable(delta.name) + ": the base has no " + printable(one.name));
    const auto base = bases_.find(*name);
    const std::vector<std::uint64_t>* rows = nullptr;
    for (const auto& [of, numbers] : use_.config.token_rows)
      if (of.empty() || ends_with_element(module, of)) rows = &numbers;
    const TensorRow& of_base = row(*base);
    if (rows == nullptr || delta.shape.size() != 2 || rows->size() != delta.shape[0] || of_base.shape.size() != 2 ||
        of_base.shape[1] != delta.shape[1]) {
      throw Error(
          ErrorCode::bad_input,
          printable(delta.name) + ": shape " + to_string(delta.shape) + " does not fit " +
              (rows == nullptr ? "without trainable_token_indices" : "the " + std::to_string(rows->size()) + " trainable_token_indices") +
              " of adapter_config.json and " + printable(of_base.name) + " of shape " + to_string(of_base.shape));
    }
    std::vector<AdapterPlan::Row>& planned = plan_.rows[*base];
    if (!planned.empty())
      throw Error(ErrorCode::bad_input, printable(delta.name) + ": two adapters replace rows of " + printable(of_base.name));
    for (std::uint64_t i = 0; i < rows->size(); ++i) planned.push_back({(*rows)[i], one.tensor, i});
    std::sort(planned.begin(), planned.end(), [](const auto& a, const auto& b) { return a.row < b.row; });
    for (std::size_t i = 0; i < planned.size(); ++i) {
      if (planned[i].row < of_base.shape[0] && (i == 0 || planned[i - 1].row != planned[i].row)) continue;
      throw Error(ErrorCode::bad_input, printable(use_.config.path, 4096) + ": trainable_token_indices names row " +
                                            std::to_string(planned[i].row) + " twice, or beyond the " + std::to_string(of_base.shape[0]) +
                                            " of " + printable(of_base.name));
    }
  }

  /// Adapters of Megatron's layers: what they add to the tensors that the family's rules make of those.
  void add_published() {
    const PairSplitter splitter(context_);
    for (const LoraPair& pair : use_.adapter.pairs) {
      for (const TensorId id : {pair.a, pair.b}) plan_.left_out[id] = "folded into the base weights";
      for (const PublishedPair& one : splitter.split(pair)) {
        const std::string name = one.module + ".weight";
        AdapterPlan::Addition& addition = plan_.additions[name];
        if (addition.addends.empty()) addition = {one.transposed ? Shape{one.in, one.out} : Shape{one.out, one.in}, {}, pair.a};
        for (Addend& addend : addends_of(one, use_.weight * scale_of(use_.config, one.module, one.rank)))
          addition.addends.push_back(std::move(addend));
        for (const auto& [head, embedding] : context_.family.ties)
          if ((name == head || name == embedding) && is_tied(context_)) plan_.unties = true;
      }
    }
  }

  void add(const LoraPair& pair, const ModuleNames& names) {
    const TensorRow &a = row(pair.a), &b = row(pair.b);
    for (const TensorId id : {pair.a, pair.b}) plan_.left_out[id] = "folded into the base weights";
    if (const auto parameter = names.parameter_of(pair)) return add_stack(pair, *parameter);
    const std::string name = name_in_base(names.renamed(pair.module) + ".weight", pair);
    Delta delta{{b.shape[0], a.shape[1]}, 0, scale(pair), whole_matrix(pair.b, b.shape), whole_matrix(pair.a, a.shape)};
    const auto base = bases_.find(name);
    if (!base) return add_pieces(name, delta, pair);
    const bool turned = pair.embedding || names.is_transposed(name, *base, delta.shape);
    if (turned) delta = transposed(delta);
    if (bases_.is_tied_head(name)) {
      check_base(*base, delta);
      plan_.unties = true;
      plan_.head_deltas.push_back(std::move(delta));
    } else {
      if (!bases_.head().empty() && (bases_.is_tied_embedding(name) || name == bases_.head())) plan_.unties = true;
      add_to(*base, std::move(delta));
    }
    if (pair.magnitude) add_magnitude(pair, *base, turned);
    if (pair.bias) add_bias(name.substr(0, name.rfind('.')), pair);
  }

  /// Of a module's weight: as it is, or as the family's rules rename it.
  [[nodiscard]] std::string name_in_base(const std::string& name, const LoraPair& pair) const {
    if (bases_.find(name)) return name;
    return renamed_by_rules(context_, name, {row(pair.b).shape[0], row(pair.a).shape[1]}, bases_).value_or(name);
  }

  /// Of a module whose weight the base has in pieces.
  void add_pieces(const std::string& name, const Delta& delta, const LoraPair& pair) {
    if (const auto& more = pair.magnitude ? pair.magnitude : pair.bias) {
      throw Error(ErrorCode::unsupported, printable(row(*more).name) + ": " + (pair.magnitude ? "DoRA" : "lora_bias") + " of " +
                                              printable(name) +
                                              ", which the base has in several tensors, can't be folded; fold it with PEFT");
    }
    add_by_rules(name, pair.embedding ? transposed(delta) : delta);
  }

  /// DoRA: the norm is taken over the inputs of each output; of an embedding over its rows.
  void add_magnitude(const LoraPair& pair, TensorId base, bool turned) {
    const TensorRow& magnitude = row(*pair.magnitude);
    plan_.left_out[*pair.magnitude] = "folded into the base weights";
    if (context_.options.lora.adapters.size() > 1 || use_.weight != 1) {
      throw Error(ErrorCode::unsupported,
                  printable(magnitude.name) +
                      ": DoRA rescales the whole weight, so that it has no sum with other adapters and no weight but 1; "
                      "fold this adapter alone");
    }
    const Shape& shape = row(base).shape;
    const std::uint64_t expected = turned ? shape[1] : shape[0];
    if (volume(magnitude.shape) != expected) {
      throw Error(ErrorCode::bad_input, printable(magnitude.name) + ": has " + std::to_string(volume(magnitude.shape)) + " magnitudes, " +
                                            printable(row(base).name) + " of shape " + to_string(shape) + " needs " +
                                            std::to_string(expected));
    }
    plan_.magnitudes[base] = {*pair.magnitude, turned};
  }

  [[nodiscard]] double scale(const LoraPair& pair) const {
    return use_.weight * scale_of(use_.config, adapted_name(use_.config, pair.module), pair.rank);
  }

  void add_bias(const std::string& module, const LoraPair& pair) {
    const TensorRow& bias = row(*pair.bias);
    plan_.left_out[*pair.bias] = "folded into the base weights";
    const auto base = bases_.find(module + ".bias");
    if (!base) {
      throw Error(ErrorCode::bad_input,
                  printable(bias.name) + ": lora_bias needs a layer with a bias, but the base has no " + printable(module + ".bias"));
    }
    add_to(*base, {bias.shape, 0, scale(pair), whole_matrix(*pair.bias, bias.shape), std::nullopt});
  }

  /// One pair for all experts: rows of A are expert-major (e * rank + k), columns of B rank-major (k * experts + e).
  void add_stack(const LoraPair& pair, const Parameter& parameter) {
    const TensorRow &a = row(pair.a), &b = row(pair.b);
    const std::uint64_t experts = parameter.experts, rank = pair.rank / experts;
    const double scale = use_.weight * scale_of(use_.config, parameter.peft_name, rank);
    for (std::uint64_t e = 0; e < experts; ++e) {
      MatrixView left = whole_matrix(pair.b, b.shape), right = whole_matrix(pair.a, a.shape);
      left.column_start = e;
      left.column_step = experts;
      left.columns = rank;
      right.row_start = e * rank;
      right.rows = rank;
      Delta delta{{experts, b.shape[0], a.shape[1]}, e, scale, left, right};
      if (!parameter.is_stack) delta.shape = {b.shape[0], a.shape[1]};
      if (parameter.transposed) delta = transposed(delta);
      if (const auto base = bases_.find(parameter.name)) {
        add_to(*base, std::move(delta));
      } else {
        add_by_rules(parameter.name, delta);
      }
    }
  }

  /// The base has the tensor in another form: the pieces that the family's rules make of it.
  void add_by_rules(const std::string& name, const Delta& delta) {
    const std::vector<Made> pieces = names_by_rules(context_, name, delta.shape, bases_);
    if (pieces.empty()) throw Error(ErrorCode::internal, printable(name) + ": the base was found to have it, but no part of it is there");
    for (const Made& piece : pieces) {
      for (const Term& term : piece.terms) {
        if (auto part = delta_of_piece(delta, term, piece.shape, piece.name)) add_to(*bases_.find(piece.name), std::move(*part));
      }
    }
  }

  void add_to(TensorId base, Delta delta) {
    check_base(base, delta);
    plan_.deltas[base].push_back(std::move(delta));
  }

  void check_base(TensorId base, const Delta& delta) const {
    const TensorRow& of = row(base);
    if (!(of.shape == delta.shape)) {
      throw Error(ErrorCode::bad_input, printable(row(delta.left.tensor).name) + ": changes a tensor of shape " + to_string(delta.shape) +
                                            ", but " + printable(of.name) + " has shape " + to_string(of.shape) +
                                            "; is this the base model that the adapter was trained on?");
    }
    if (!info(of.dtype).castable) {
      throw Error(ErrorCode::unsupported, printable(of.name) + ": is stored as " + std::string(info(of.dtype).name) +
                                              ", to which nothing can be added; take the base model that is not quantised");
    }
    if (of.dtype == DType::f64) {
      throw Error(ErrorCode::unsupported,
                  printable(of.name) + ": is stored as float64, but adapters are folded in float32; take a base model of float32");
    }
  }

  const MapContext& context_;
  const AdapterUse& use_;
  AdapterPlan& plan_;
  BaseTensors& bases_;
};

/// Every tensor of an adapter that is not part of the base model's.
std::vector<TensorId> tensors_of(const Adapter& adapter) {
  std::vector<TensorId> ids;
  for (const LoraPair& pair : adapter.pairs) {
    ids.insert(ids.end(), {pair.a, pair.b});
    for (const auto& id : {pair.bias, pair.magnitude})
      if (id) ids.push_back(*id);
  }
  for (const auto* list : {&adapter.replacements, &adapter.token_rows})
    for (const Replacement& one : *list) ids.push_back(one.tensor);
  return ids;
}

}  // namespace

void check_adapters(const std::vector<TensorRow>& table, const ModelConfig& config, const MapOptions& options) {
  (void)make_context(table, config, options);
}

AdapterPlan plan_adapters(const MapContext& context) {
  AdapterPlan plan;
  const LoraChoice& lora = context.options.lora;
  if (lora.what == LoraChoice::What::drop || lora.adapters.empty()) return plan;
  std::set<TensorId> parts;
  for (const AdapterUse& use : lora.adapters)
    for (const TensorId id : tensors_of(use.adapter)) parts.insert(id);
  if (lora.what == LoraChoice::What::extract) {
    for (const TensorId id : parts) plan.left_out[id] = "in the adapter";
    return plan;
  }
  BaseTensors bases(context, parts);
  if (is_tied(context)) {
    for (const auto& [head, embedding] : context.family.ties)
      if (bases.find(embedding)) bases.tie(head, embedding);
  }
  std::size_t pairs = 0;
  for (const AdapterUse& use : lora.adapters) {
    Planner(context, use, plan, bases).run();
    pairs += use.adapter.pairs.size();
  }
  if (!plan.additions.empty()) pairs = plan.additions.size();
  plan.notes.push_back("Folding LoRA into the base weights: " + counted(lora.adapters.size(), "adapter") + ", " + counted(pairs, "pair"));
  return plan;
}

}  // namespace unshard
