// The last step of mapping that concerns adapters: each target learns what is added to it, through the terms that it is made of.
#include <algorithm>
#include <set>

#include "mapping_steps.h"
#include "names.h"
#include "unshard/error.h"

namespace unshard {
namespace {

/// What is added to a tensor as this target has it.
const std::vector<Delta>& deltas_of(const MapContext& context, TensorId source, bool is_second_use) {
  static const std::vector<Delta> none;
  if (is_second_use) return context.adapters.head_deltas;
  const auto found = context.adapters.deltas.find(source);
  return found == context.adapters.deltas.end() ? none : found->second;
}

/// Trained tokens: some rows of an embedding come from another tensor.
void replace_rows(const MapContext& context, Target& target) {
  if (target.terms.size() != 1) return;
  const TensorId source = target.terms.front().source;
  const auto rows = context.adapters.rows.find(source);
  if (rows == context.adapters.rows.end()) return;
  if (!(target.terms.front() == copy_of(source, context.table[source].shape))) {
    throw Error(ErrorCode::unsupported,
                printable(target.name) + ": is not stored as it is written, so that its trained rows can't be put in");
  }
  const std::uint64_t columns = target.shape[1];
  const auto run = [&](TensorId from, std::uint64_t first, std::uint64_t count, std::uint64_t at) {
    if (count > 0) target.terms.push_back({from, {first, 0}, {at, 0}, {{count, 0, 0, 1, 1}, {columns, 1, 1, 1, 1}}});
  };
  target.terms.clear();
  std::uint64_t at = 0;
  for (const AdapterPlan::Row& row : rows->second) {
    run(source, at, row.row - at, at);
    run(row.tensor, row.from, 1, row.row);
    at = row.row + 1;
  }
  run(source, at, target.shape[0] - at, at);
}

void note_decomposition(const MapContext& context, const Target& target, std::size_t number, Mapping& mapping) {
  for (const Term& term : target.terms) {
    const auto magnitude = context.adapters.magnitudes.find(term.source);
    if (magnitude == context.adapters.magnitudes.end()) continue;
    if (target.terms.size() != 1 || !(term == copy_of(term.source, context.table[term.source].shape))) {
      throw Error(ErrorCode::unsupported,
                  printable(target.name) + ": is not stored as it is written, so that DoRA can't be folded into it");
    }
    mapping.decompositions.push_back({number, magnitude->second.tensor, magnitude->second.of_columns});
  }
}

/// What is added to a target by its name.
void add_by_name(const MapContext& context, const Target& target, Computation& computation, std::set<std::string>& found) {
  const auto addition = context.adapters.additions.find(target.name);
  if (addition == context.adapters.additions.end()) return;
  found.insert(target.name);
  const AdapterPlan::Addition& added = addition->second;
  if (!(added.shape == target.shape)) {
    throw Error(ErrorCode::bad_input, printable(context.table[added.from].name) + ": changes a tensor of shape " + to_string(added.shape) +
                                          ", but " + printable(target.name) + " has shape " + to_string(target.shape));
  }
  if (!info(target.dtype).castable || target.dtype == DType::f64) {
    throw Error(ErrorCode::unsupported, printable(target.name) + ": is stored as " + std::string(info(target.dtype).name) +
                                            ", to which no adapter is folded; leave the adapter out with --lora drop");
  }
  computation.addends.insert(computation.addends.end(), added.addends.begin(), added.addends.end());
}

/// Everything that is to be added by name must have its target, but for those that the user leaves out.
void require_found(const MapContext& context, const std::set<std::string>& found) {
  std::vector<std::string> lost;
  for (const auto& [name, addition] : context.adapters.additions) {
    if (!found.contains(name) && !any_glob_matches(context.options.drop, name)) lost.push_back(name);
  }
  if (lost.empty()) return;
  if (context.options.like) {
    throw Error(ErrorCode::unsupported,
                name_list(lost) +
                    ": the --like folder has another layout than the modules that the adapter changes; leave --like "
                    "out, or write the adapter by --lora extract");
  }
  throw Error(ErrorCode::bad_input, std::to_string(context.adapters.additions.size() - lost.size()) + " of " +
                                        std::to_string(context.adapters.additions.size()) +
                                        " LoRA pairs found their modules in the base; it lacks " + name_list(lost));
}

std::uint64_t elements_of(const Delta& delta) {
  return delta.left.rows * (delta.right ? delta.right->columns : delta.left.columns);
}

}  // namespace

void add_addends(const MapContext& context, Published& published, Mapping& mapping) {
  std::unordered_map<TensorId, std::uint64_t> reached;  // elements, by base tensor
  const Tie tie = context.adapters.unties ? find_tie(context, published) : Tie{};
  const auto is_second_use = [&](const Target& target) {  // the head that was no tensor of its own
    return &target == tie.head && tie.embedding != nullptr && target.terms.front().source == tie.embedding->terms.front().source;
  };
  std::set<std::string> by_name;
  for (std::size_t i = 0; i < published.targets.size(); ++i) {
    Target& target = published.targets[i];
    Computation computation = target.computation ? *target.computation : Computation{};
    add_by_name(context, target, computation, by_name);
    for (const Term& term : target.terms) {
      for (const Delta& delta : deltas_of(context, term.source, is_second_use(target))) {
        auto addend = reach(delta, term, target);
        if (!addend) continue;
        if (!is_second_use(target)) reached[term.source] += addend->left.rows * addend->columns();
        computation.addends.push_back(std::move(*addend));
      }
    }
    if (!computation.addends.empty()) target.computation = std::make_shared<const Computation>(std::move(computation));
    if (target.computation && !is_second_use(target)) note_decomposition(context, target, i, mapping);
    replace_rows(context, target);
  }
  require_found(context, by_name);
  for (const auto& [base, deltas] : context.adapters.deltas) {
    std::uint64_t wanted = 0;
    for (const Delta& delta : deltas) wanted += elements_of(delta);
    // A tensor that is not published at all (dropped, a tied copy) takes its update with it.
    if (const auto found = reached.find(base); found != reached.end() && found->second != wanted) {
      throw Error(ErrorCode::unsupported,
                  printable(context.table[base].name) +
                      ": only a part of its LoRA update would reach the output; leave the adapter out with --lora drop");
    }
  }
}

}  // namespace unshard
