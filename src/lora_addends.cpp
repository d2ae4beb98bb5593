// The last step of mapping that concerns adapters: each target learns what is added to it, through the terms that it is made of.
#include <algorithm>
#include <array>
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

void require_floating(const Target& target) {
  if (info(target.dtype).castable && target.dtype != DType::f64) return;
  throw Error(ErrorCode::unsupported, printable(target.name) + ": is stored as " + std::string(info(target.dtype).name) +
                                          ", to which no adapter is folded; `merge --lora drop` leaves the adapter out");
}

/// What is added to a matrix, as added to a target that `part` makes of it whole.
std::optional<Addend> in_layout(Addend addend, const LikePart& part, const Target& target) {
  const std::size_t rank = target.shape.size();
  std::array<std::size_t, 2> along{max_rank, max_rank};
  for (const Axis& axis : part.term.axes) {
    const bool whole = part.term.source_start[axis.source_dim] == 0 && axis.extent == part.shape[axis.source_dim];
    if (axis.source_step != 1 || axis.target_step != 1 || !whole || along.at(axis.source_dim) != max_rank) return std::nullopt;
    along.at(axis.source_dim) = axis.target_dim;
  }
  if (rank < 2 || !(along == std::array{rank - 2, rank - 1} || along == std::array{rank - 1, rank - 2})) return std::nullopt;
  if (along[0] == rank - 1) addend = transposed(std::move(addend));
  std::uint64_t row = 0;
  for (std::size_t d = 0; d + 1 < rank; ++d) row = row * target.shape[d] + part.term.target_start[d];
  addend.first_row += row;
  addend.first_column += part.term.target_start[rank - 1];
  return addend;
}

/// What is added to a target by its name, or by the names of the published tensors that it is made of.
void add_by_name(const MapContext& context, const LikeParts& layouts, const Target& target, Computation& computation,
                 std::set<std::string>& found) {
  if (context.adapters.additions.empty()) return;
  const auto layout = layouts.find(target.name);
  const std::vector<LikePart> itself{{target.name, target.shape, copy_of(0, target.shape)}};
  for (const LikePart& part : layout == layouts.end() ? itself : layout->second) {
    const auto addition = context.adapters.additions.find(part.published);
    if (addition == context.adapters.additions.end()) continue;
    const AdapterPlan::Addition& added = addition->second;
    if (!(added.shape == part.shape)) {
      throw Error(ErrorCode::bad_input, printable(context.table[added.from].name) + ": changes a tensor of shape " +
                                            to_string(added.shape) + ", but " + printable(part.published) + " has shape " +
                                            to_string(part.shape));
    }
    require_floating(target);
    for (const Addend& addend : added.addends) {
      auto here = in_layout(addend, part, target);
      if (!here) {
        throw Error(ErrorCode::unsupported,
                    printable(target.name) + ": the --like folder has " + printable(part.published) +
                        " in a layout in which its adapter can't be folded; leave --like out, or write the adapter by "
                        "--lora extract");
      }
      computation.addends.push_back(std::move(*here));
    }
    found.insert(part.published);
  }
}

/// Everything that is to be added by name must have its target, but for those that the user leaves out.
void require_found(const MapContext& context, const std::set<std::string>& found) {
  std::vector<std::string> lost;
  for (const auto& [name, addition] : context.adapters.additions) {
    if (!found.contains(name) && !any_glob_matches(context.options.drop, name)) lost.push_back(name);
  }
  if (lost.empty()) return;
  throw Error(ErrorCode::bad_input, std::to_string(context.adapters.additions.size() - lost.size()) + " of " +
                                        std::to_string(context.adapters.additions.size()) +
                                        " LoRA pairs found their modules in the base; it lacks " + name_list(lost));
}

std::uint64_t elements_of(const Delta& delta) {
  return delta.left.rows * (delta.right ? delta.right->columns : delta.left.columns);
}

}  // namespace

void add_addends(const MapContext& context, const LikeParts& parts, Published& published, Mapping& mapping) {
  std::unordered_map<TensorId, std::uint64_t> reached;  // elements, by base tensor
  const Tie tie = context.adapters.unties ? find_tie(context, published) : Tie{};
  const auto is_second_use = [&](const Target& target) {  // the head that was no tensor of its own
    return &target == tie.head && tie.embedding != nullptr && target.terms.front().source == tie.embedding->terms.front().source;
  };
  std::set<std::string> by_name;
  for (std::size_t i = 0; i < published.targets.size(); ++i) {
    Target& target = published.targets[i];
    Computation computation = target.computation ? *target.computation : Computation{};
    add_by_name(context, parts, target, computation, by_name);
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
                      ": only a part of its LoRA update would reach the output; `merge --lora drop` leaves the adapter out");
    }
  }
}

}  // namespace unshard
