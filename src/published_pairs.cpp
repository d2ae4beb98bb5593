#include "published_pairs.h"

#include <algorithm>
#include <optional>
#include <set>

#include "names.h"
#include "unshard/error.h"

namespace unshard {
namespace {

constexpr std::string_view weight_ending = ".weight";

[[noreturn]] void refuse(const std::string& module, const std::string& what) {
  throw Error(ErrorCode::unsupported, printable(module) + ": " + what + "; `merge --lora drop` leaves the adapter out");
}

/// The name that the rules have for a stored one: without wrappers and PEFT's elements.
std::string name_for_rules(const MapContext& context, std::string_view stored) {
  std::string name = without_peft(without_wrappers(stored));
  if (!context.renames.empty()) name = with_parts_replaced(name, context.renames);
  return megatron_name(
      context.family, [&](const Captures& captures) { return context.names(captures); }, std::move(name));
}

std::string module_of(const Made& piece) {
  const std::string& name = piece.name;
  return name.ends_with(weight_ending) ? name.substr(0, name.size() - weight_ending.size()) : name;
}

/// The axes of `term` along one dimension of its source, which all run along one dimension of its target.
struct AxisRun {
  std::vector<Axis> axes;
  std::optional<std::uint8_t> target_dim;
  std::uint64_t count = 1;
};

AxisRun run_along(const Term& term, std::size_t dim, const std::string& module) {
  AxisRun run;
  for (const Axis& axis : term.axes) {
    if (axis.source_dim != dim) continue;
    if (run.target_dim && *run.target_dim != axis.target_dim && axis.extent > 1 && run.count > 1)
      refuse(module, "is published with its rows or columns in two dimensions, which no pair of matrices follows");
    if (!run.target_dim || axis.extent > 1) run.target_dim = axis.target_dim;
    run.count *= axis.extent;
    run.axes.push_back(axis);
  }
  return run;
}

/// Takes one stored pair apart.
class Splitting {
 public:
  Splitting(const MapContext& context, const std::unordered_map<std::string, TensorId>& bases, const LoraPair& pair)
      : context_(context), bases_(bases), pair_(pair), a_(context.table[pair.a]), b_(context.table[pair.b]) {}

  std::vector<PublishedPair> run() {
    if (pair_.embedding || pair_.bias || pair_.magnitude || pair_.depth > 0) {
      refuse(pair_.module, pair_.embedding
                               ? "an adapter of Megatron's embedding is not supported"
                               : "has more than the two matrices of LoRA (a bias, DoRA), which is not supported in Megatron's layers");
    }
    name_ = name_for_rules(context_, pair_.module + std::string(weight_ending));
    const std::optional<Shape> base = base_shape();
    const Shape whole = base ? *base : without_base();
    const bool is_projection = !pair_.projection.empty();
    std::vector<PublishedPair> pairs;
    for (const Made& piece : pieces_of(whole)) {
      if (!is_projection) {
        pairs.push_back(pair_of(piece));
      } else if (const std::string module = module_of(piece); module.substr(module.rfind('.') + 1) == pair_.projection + "_proj") {
        pairs.push_back(projection_of(piece));
      }
    }
    if (is_projection && pairs.empty())
      refuse(pair_.module, "adapts its projection '" + printable(pair_.projection) + "', which the published model does not have apart");
    return pairs;
  }

 private:
  [[nodiscard]] std::uint64_t inputs() const { return a_.shape[a_.shape.size() - 1]; }
  [[nodiscard]] std::uint64_t outputs() const { return b_.shape[b_.shape.size() - 2]; }

  [[nodiscard]] Shape without_base() const {
    if (!pair_.projection.empty())
      refuse(pair_.module, "adapts one projection of a fused layer, whose base weight is not in the checkpoint");
    Shape whole = pair_.stack;
    whole.push_back(outputs());
    whole.push_back(inputs());
    return whole;
  }

  /// The shape of the base weight, which the pair must fit; none when the checkpoint has only adapters.
  [[nodiscard]] std::optional<Shape> base_shape() const {
    const auto found = bases_.find(name_);
    if (found == bases_.end()) return std::nullopt;
    const TensorRow& base = context_.table[found->second];
    const Shape& shape = base.shape;
    const std::size_t rank = shape.size();
    const bool fits = rank >= 2 && rank >= pair_.stack.size() + 2 && shape[rank - 1] == inputs() &&
                      (shape[rank - 2] == outputs() || !pair_.projection.empty()) &&
                      std::equal(pair_.stack.begin(), pair_.stack.end(), shape.begin());
    if (fits) return shape;
    throw Error(ErrorCode::bad_input, printable(a_.name) + ": shape " + to_string(a_.shape) + " and " + printable(b_.name) + ": shape " +
                                          to_string(b_.shape) + " do not fit the layer that they adapt, " + printable(base.name) +
                                          " of shape " + to_string(shape));
  }

  /// mcore-bridge saves a gated layer's base as [gate; up], but its B as the tensor-parallel ranks have it, [gate_0; up_0; gate_1; up_1 …]
  /// (tuners/lora.py, sharded_state_dict). Files of single ranks say the number of pieces for both.
  [[nodiscard]] Captures gate_pieces() const {
    constexpr const char* pieces = "glu_pieces";
    if (pair_.of_bridge || context_.options.facts.contains(pieces) || !pair_.module.ends_with("linear_fc1")) return {};
    if (pair_.module.find(".experts.") != std::string::npos) return {};  // never cut: it refuses expert tensor parallelism
    const auto size = context_.options.facts.find("tensor_parallel");
    if (size == context_.options.facts.end()) {
      refuse(
          pair_.module,
          "its gate and up rows are in the order of the tensor-parallel ranks that saved them, whose number the checkpoint does not say");
    }
    return {{pieces, std::to_string(size->second)}};
  }

  [[nodiscard]] std::vector<Made> pieces_of(const Shape& whole) const {
    const Captures first = gate_pieces();
    const Scope scope = [&](const Captures& captures) {
      Captures all = first;
      all.insert(all.end(), captures.begin(), captures.end());
      return context_.names(std::move(all));
    };
    for (const Rule& rule : context_.family.megatron) {
      if (rule.only_for_like) continue;
      refuse_by_rule(rule, name_, scope);
      if (!rule.whole_is_stored) {
        if (whole_of(rule, name_)) refuse(pair_.module, "is published as a part of another tensor, which no pair of matrices follows");
        continue;
      }
      if (auto pieces = split_whole(rule, name_, whole, scope)) return std::move(*pieces);
    }
    throw Error(ErrorCode::bad_input, printable(a_.name) + ": no rule of the family '" + printable(context_.family.name) + "' maps " +
                                          printable(name_) + ", which it adapts; name it with --custom-mapping");
  }

  /// Megatron-Bridge's canonical form: the pair is the projection's own, only the layer and expert are to be found.
  [[nodiscard]] PublishedPair projection_of(const Made& piece) const {
    if (!(piece.shape == Shape{outputs(), inputs()})) {
      throw Error(ErrorCode::bad_input, printable(b_.name) + ": shape " + to_string(b_.shape) + ", but " + printable(piece.name) +
                                            " has shape " + to_string(piece.shape));
    }
    const auto matrix = [&](TensorId id, const Shape& shape) {
      Term term = in_stack(id, shape, piece.terms.front());
      const auto rank = static_cast<std::uint8_t>(shape.size());
      for (std::uint8_t d = 0; d < 2; ++d) {
        const auto from = static_cast<std::uint8_t>(rank - 2 + d);
        term.axes.push_back({shape[from], from, d, 1, 1});
      }
      return term;
    };
    return {module_of(piece), pair_.rank, inputs(), outputs(), false, matrix(pair_.a, a_.shape), {matrix(pair_.b, b_.shape)}};
  }

  [[nodiscard]] PublishedPair pair_of(const Made& piece) const {
    if (piece.shape.size() != 2 || !piece.name.ends_with(weight_ending)) {
      refuse(pair_.module,
             "is published as " + printable(piece.name) + " of shape " + to_string(piece.shape) + ", which no pair of matrices follows");
    }
    PublishedPair made{module_of(piece), pair_.rank, 0, 0, false, {}, {}};
    for (const Term& term : piece.terms) {
      const std::size_t rank = term.source_start.size();
      const AxisRun rows = run_along(term, rank - 2, pair_.module), columns = run_along(term, rank - 1, pair_.module);
      for (const Axis& axis : term.axes) {
        if (axis.source_dim + 2U < rank && axis.extent > 1)
          refuse(pair_.module, "is published with several of its layers or experts in one tensor");
      }
      const bool transposed = rows.target_dim == 1U || columns.target_dim == 0U;
      if (transposed && (rows.target_dim == 0U || columns.target_dim == 1U))
        refuse(pair_.module, "is published with rows and columns in one dimension");
      const std::uint8_t row_dim = transposed ? 1 : 0, column_dim = transposed ? 0 : 1;
      Term a = in_stack(pair_.a, a_.shape, term), b = in_stack(pair_.b, b_.shape, term);
      const auto a_rank = static_cast<std::uint8_t>(a_.shape.size()), b_rank = static_cast<std::uint8_t>(b_.shape.size());
      a.source_start[a_rank - 1U] = term.source_start[rank - 1];
      a.target_start = {0, term.target_start[column_dim]};
      a.axes = {{pair_.rank, static_cast<std::uint8_t>(a_rank - 2), 0, 1, 1}};
      for (const Axis& axis : columns.axes)
        a.axes.push_back({axis.extent, static_cast<std::uint8_t>(a_rank - 1), 1, axis.source_step, axis.target_step});
      b.source_start[b_rank - 2U] = term.source_start[rank - 2];
      b.target_start = {term.target_start[row_dim], 0};
      for (const Axis& axis : rows.axes)
        b.axes.push_back({axis.extent, static_cast<std::uint8_t>(b_rank - 2), 0, axis.source_step, axis.target_step});
      b.axes.push_back({pair_.rank, static_cast<std::uint8_t>(b_rank - 1), 1, 1, 1});
      made.in = piece.shape[column_dim];
      made.out = piece.shape[row_dim];
      if (columns.count != made.in || (!made.b.empty() && (!(a == made.a) || transposed != made.transposed)))
        refuse(pair_.module, "is published as " + printable(piece.name) + ", whose parts have different inputs");
      made.a = std::move(a);
      made.transposed = transposed;
      made.b.push_back(std::move(b));
    }
    return made;
  }

  /// A term that starts at the layer and expert that `whole` starts at; what all layers or experts share has no such dimension.
  [[nodiscard]] static Term in_stack(TensorId id, const Shape& shape, const Term& whole) {
    Term term{id, Shape::filled(shape.size(), 0), {0, 0}, {}};
    for (std::size_t d = 0; d + 2 < shape.size(); ++d) term.source_start[d] = whole.source_start[d];
    return term;
  }

  const MapContext& context_;
  const std::unordered_map<std::string, TensorId>& bases_;
  const LoraPair& pair_;
  const TensorRow &a_, &b_;
  std::string name_;
};

/// The rows that a term fills, which must be a contiguous range.
std::uint64_t dense_rows(const Term& term, const std::string& module) {
  std::vector<Axis> axes;
  for (const Axis& axis : term.axes)
    if (axis.target_dim == 0 && axis.extent > 1) axes.push_back(axis);
  std::sort(axes.begin(), axes.end(), [](const Axis& a, const Axis& b) { return a.target_step < b.target_step; });
  std::uint64_t rows = 1;
  for (const Axis& axis : axes) {
    if (axis.target_step != rows) refuse(module, "is published with other rows between its own");
    rows *= axis.extent;
  }
  return rows;
}

}  // namespace

PairSplitter::PairSplitter(const MapContext& context) : context_(context) {
  for (TensorId id = 0; id < context.table.size(); ++id) {
    const TensorRow& row = context.table[id];
    if (row.origin != 0 || is_lora(row.name) || is_saved_module(row.name) || !row.name.ends_with(weight_ending)) continue;
    bases_.emplace(name_for_rules(context, row.name), id);
  }
}

std::vector<PublishedPair> PairSplitter::split(const LoraPair& pair) const {
  return Splitting(context_, bases_, pair).run();
}

std::vector<Made> PairSplitter::pieces(const std::string& stored, const Shape& shape) const {
  const Scope scope = [&](const Captures& captures) { return context_.names(captures); };
  const std::string name = name_for_rules(context_, stored);
  for (const Rule& rule : context_.family.megatron) {
    if (rule.only_for_like) continue;
    refuse_by_rule(rule, name, scope);
    if (!rule.whole_is_stored) continue;
    if (auto pieces = split_whole(rule, name, shape, scope)) return std::move(*pieces);
  }
  return {};
}

bool PairSplitter::can_translate(const std::string& name) const {
  const Scope scope = [&](const Captures& captures) { return context_.names(captures); };
  return std::none_of(context_.family.megatron.begin(), context_.family.megatron.end(),
                      [&](const Rule& rule) { return !rule.only_for_like && is_refused_by(rule, name, scope); });
}

std::set<std::string> PairSplitter::modules() const {
  std::set<std::string> modules;
  for (const auto& [name, id] : bases_) {
    if (!can_translate(name)) continue;
    for (const Made& piece : pieces(name, context_.table[id].shape)) {
      if (piece.shape.size() == 2 && piece.name.ends_with(weight_ending)) modules.insert(module_of(piece));
    }
  }
  return modules;
}

std::vector<Addend> addends_of(const PublishedPair& pair, double scale) {
  std::vector<Addend> addends;
  for (const Term& rows : pair.b) {
    const std::uint64_t first = rows.target_start[0];
    Factor left{dense_rows(rows, pair.module), pair.rank, rows}, right{pair.rank, pair.in, pair.a};
    left.term.target_start = {0, 0};
    Addend addend{scale, first, 0, std::move(left), std::move(right)};
    addends.push_back(pair.transposed ? transposed(std::move(addend)) : std::move(addend));
  }
  return addends;
}

}  // namespace unshard
