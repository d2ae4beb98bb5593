#include "families/rules.h"

#include <algorithm>

#include "checked_math.h"
#include "unshard/error.h"

namespace unshard {
namespace {

constexpr std::uint64_t most_pieces = 1'000'000;

/// Calls `visit` for every combination of indices of the piece's named axes, the last one running fastest.
template <class Visit>
void for_each_index(const RulePiece& piece, const AxisSizes& sizes, AxisSizes& indices, std::size_t depth, const Visit& visit) {
  if (depth == piece.named.size()) return visit(indices);
  const std::string& axis = piece.named[depth];
  for (std::uint64_t i = 0; i < sizes.find(axis)->second; ++i) {
    indices[axis] = i;
    for_each_index(piece, sizes, indices, depth + 1, visit);
  }
}

Captures with_indices(Captures captures, const AxisSizes& indices) {
  for (const auto& [axis, index] : indices) captures.emplace_back(axis, std::to_string(index));
  return captures;
}

/// The captures that the whole's name shares with a piece's.
std::optional<Captures> shared_captures(const Rule& rule, const Captures& captures) {
  Captures shared;
  for (const std::string& variable : rule.whole.variables()) {
    const std::string* value = find_capture(captures, variable);
    if (value == nullptr) return std::nullopt;
    shared.emplace_back(variable, *value);
  }
  return shared;
}

bool applies(const Rule& rule, const Names& names) {
  if (!rule.when) return true;
  const auto value = rule.when->value(names);
  return value && *value != 0;
}

std::uint64_t piece_count(const Rule& rule, const AxisSizes& sizes) {
  std::uint64_t count = 0;
  for (const RulePiece& piece : rule.pieces) {
    std::uint64_t combinations = 1;
    for (const std::string& axis : piece.named)
      combinations = checked_multiply(combinations, sizes.find(axis)->second).value_or(most_pieces + 1);
    count += std::min(combinations, most_pieces + 1);
  }
  return count;
}

/// One piece: a term for each of its parts, which stand one behind the other along the first dimension.
Made piece_at(const Rule& rule, const RulePiece& piece, std::string piece_name, const std::string& whole, const AxisSizes& sizes,
              const AxisSizes& at, const Names& names) {
  Made made{std::move(piece_name), {}, {whole}, {}, rule.whole_is_stored ? rule.add : -rule.add};
  const std::size_t along = piece.along;
  for (const PieceAxes& part : piece.parts) {
    PieceOfWhole placed = place_piece(*rule.axes, part, sizes, at, names, whole);
    if (made.terms.empty()) {
      made.shape = placed.shape;
    } else {
      placed.from_whole.target_start[along] = made.shape[along];
      const auto extent = checked_add(made.shape[along], placed.shape[along]);
      placed.shape[along] = made.shape[along] = extent.value_or(0);
      if (!extent || !(placed.shape == made.shape))
        throw Error(ErrorCode::bad_input, printable(whole) + ": the parts of " + printable(made.name) + " do not fit behind each other");
    }
    made.terms.push_back(std::move(placed.from_whole));
  }
  return made;
}

/// The pieces of a whole whose sizes are known.
std::vector<Made> pieces_of(const Rule& rule, const std::string& name, const AxisSizes& sizes, const Captures& captures,
                            const Names& names) {
  if (piece_count(rule, sizes) > most_pieces)
    throw Error(ErrorCode::bad_input, printable(name) + ": would fall into more than a million pieces");
  std::vector<Made> made;
  for (const RulePiece& piece : rule.pieces) {
    AxisSizes indices;
    for_each_index(piece, sizes, indices, 0, [&](const AxisSizes& at) {
      made.push_back(piece_at(rule, piece, piece.name.fill(with_indices(captures, at)), name, sizes, at, names));
    });
  }
  return made;
}

/// Proves that the pieces cover the whole exactly once: that the rule loses nothing.
void check_pieces(const Rule& rule, const std::string& name, const Shape& shape, const std::vector<Made>& pieces) {
  if (rule.rest_is_padding) return;
  Target whole{name, DType::u8, shape, {}};
  std::vector<TensorRow> table;
  for (const Made& piece : pieces) {
    for (const Term& term : piece.terms) {
      whole.terms.push_back(reversed(term));
      whole.terms.back().source = static_cast<TensorId>(table.size());
    }
    table.push_back({piece.name, DType::u8, piece.shape, 0});
  }
  try {
    check_target(whole, table);
  } catch (const Error&) {
    throw Error(ErrorCode::bad_input,
                printable(name) + ": the pieces of '" + rule.axes->text + "' do not cover it exactly once; correct the rule");
  }
}

/// `add`: what the way from `from` to `to` adds.
Made renamed(const std::string& from, std::string to, const Shape& shape, float add) {
  return {std::move(to), shape, {from}, {copy_of(0, shape)}, add};
}

/// A rename of a whole that is stacked along its first dimension: one piece for each index there.
std::vector<Made> unstacked(const Rule& rule, const std::string& name, const Shape& shape, const Captures& captures) {
  if (shape.empty() || shape[0] > most_pieces)
    throw Error(ErrorCode::bad_input,
                printable(name) + ": stored shape " + to_string(shape) + " has no first dimension over {" + rule.stacked + "}");
  const Shape piece_shape(std::span(shape.begin() + 1, shape.end()));
  std::vector<Made> made;
  for (std::uint64_t i = 0; i < shape[0]; ++i) {
    Term term{0, Shape::filled(shape.size(), 0), Shape::filled(piece_shape.size(), 0), {}};
    term.source_start[0] = i;
    for (std::size_t d = 0; d < piece_shape.size(); ++d)
      term.axes.push_back({piece_shape[d], static_cast<std::uint8_t>(d + 1), static_cast<std::uint8_t>(d), 1, 1});
    made.push_back(
        {rule.pieces.front().name.fill(with_indices(captures, {{rule.stacked, i}})), piece_shape, {name}, {std::move(term)}, rule.add});
  }
  return made;
}

Shape whole_shape(const WholeAxes& whole, const AxisSizes& sizes, const std::string& name) {
  Shape shape;
  for (const auto& dimension : whole.dimensions.axes) {
    std::uint64_t extent = 1;
    for (const std::string& axis : dimension) {
      const auto product = checked_multiply(extent, sizes.find(axis)->second);
      if (!product) throw Error(ErrorCode::bad_input, printable(name) + ": would be too large");
      extent = *product;
    }
    shape.push_back(extent);
  }
  return shape;
}

/// Finds the sizes of a whole from its pieces.
class SizesFromPieces {
 public:
  SizesFromPieces(const Rule& rule, const std::string& name, const Captures& captures, const Lookup& lookup, const Names& names)
      : rule_(rule), name_(name), captures_(captures), lookup_(lookup), names_(names) {}

  /// None when no piece is there.
  std::optional<AxisSizes> find() {
    for (const auto& [axis, expression] : rule_.axes->sizes) {
      const auto value = expression.value(names_);
      if (!value)
        throw Error(ErrorCode::bad_input,
                    names_.where() + ": has no value for '" + expression.text() + "', which " + printable(name_) + " needs");
      sizes_[axis] = *value;
    }
    for (const RulePiece& piece : rule_.pieces) {
      if (!first_of(piece)) continue;
      found_ = true;
      for (const std::string& axis : piece.named) count(piece, axis);
      solve(piece);
    }
    if (!found_) return std::nullopt;
    for (const auto& dimension : rule_.axes->dimensions.axes) {
      for (const std::string& axis : dimension) {
        if (!sizes_.contains(axis))
          throw Error(ErrorCode::bad_input,
                      printable(name_) + ": the size of axis " + axis + " of '" + rule_.axes->text + "' is not known");
      }
    }
    return sizes_;
  }

 private:
  [[nodiscard]] std::optional<Shape> first_of(const RulePiece& piece) const {
    AxisSizes zero;
    for (const std::string& axis : piece.named) zero[axis] = 0;
    return lookup_(piece.name.fill(with_indices(captures_, zero)));
  }

  void count(const RulePiece& piece, const std::string& axis) {
    if (sizes_.contains(axis)) return;
    AxisSizes indices;
    for (const std::string& other : piece.named) indices[other] = 0;
    std::uint64_t number = 1;
    for (; number < most_pieces; ++number) {
      indices[axis] = number;
      if (!lookup_(piece.name.fill(with_indices(captures_, indices)))) break;
    }
    sizes_[axis] = number;
  }

  void solve(const RulePiece& piece) {
    const Shape shape = *first_of(piece);
    const PieceAxes& part = piece.parts.front();
    if (shape.size() != part.dimensions.axes.size()) return;  // join_pieces names it with the shape that is expected
    for (std::size_t d = 0; d < shape.size(); ++d) {
      if (piece.parts.size() > 1 && d == piece.along) continue;
      std::uint64_t known = 1;
      const std::string* unknown = nullptr;
      for (const std::string& axis : part.dimensions.axes[d]) {
        const bool is_within_range =
            std::any_of(part.selections.begin(), part.selections.end(), [&](const Selection& one) { return one.outer == axis; });
        if (is_within_range) continue;  // the length of the range has it
        const bool ranged =
            std::any_of(part.selections.begin(), part.selections.end(), [&](const Selection& one) { return one.axis == axis; });
        if (ranged || sizes_.contains(axis)) {
          known = checked_multiply(known, ranged ? range_length(part, axis) : sizes_.find(axis)->second).value_or(0);
        } else if (unknown == nullptr) {
          unknown = &axis;
        }
      }
      if (unknown != nullptr && known != 0 && shape[d] % known == 0) sizes_[*unknown] = shape[d] / known;
    }
  }

  [[nodiscard]] std::uint64_t range_length(const PieceAxes& part, const std::string& axis) const {
    for (const Selection& selection : part.selections) {
      if (selection.axis != axis || !selection.end) continue;
      const auto begin = selection.begin.value(names_);
      const auto end = selection.end->value(names_);
      return begin && end && *end > *begin ? *end - *begin : 0;
    }
    return 0;
  }

  const Rule& rule_;
  const std::string& name_;
  const Captures& captures_;
  const Lookup& lookup_;
  const Names& names_;
  AxisSizes sizes_;
  bool found_ = false;
};

}  // namespace

std::vector<std::pair<std::string, Expression>> computed_variables(const NamePattern& pattern, const std::string& label) {
  std::vector<std::pair<std::string, Expression>> computed;
  for (const std::string& variable : pattern.variables()) {
    if (is_computed(variable)) computed.emplace_back(variable, Expression::parse(variable, label));
  }
  return computed;
}

Captures with_computed(const std::vector<std::pair<std::string, Expression>>& computed, Captures captures, const Names& names,
                       const std::string& tensor) {
  for (const auto& [variable, expression] : computed) {
    const auto value = expression.value(names);
    if (!value)
      throw Error(ErrorCode::bad_input,
                  names.where() + ": has no value for '" + expression.text() + "', which " + printable(tensor) + " needs");
    captures.emplace_back(variable, std::to_string(*value));
  }
  return captures;
}

std::optional<std::vector<Made>> split_whole(const Rule& rule, const std::string& name, const Shape& shape, const Scope& scope) {
  const auto captures = rule.refusal.empty() ? rule.whole.match(name) : std::nullopt;
  if (!captures) return std::nullopt;
  const auto names = scope(*captures);
  if (!applies(rule, *names)) return std::nullopt;
  const Captures known = with_computed(rule.computed, *captures, *names, name);
  if (!rule.stacked.empty()) return unstacked(rule, name, shape, known);
  if (!rule.axes) return std::vector<Made>{renamed(name, rule.pieces.front().name.fill(known), shape, rule.add)};
  const AxisSizes sizes = solve_sizes(*rule.axes, shape, *names, name);
  std::vector<Made> pieces = pieces_of(rule, name, sizes, known, *names);
  check_pieces(rule, name, shape, pieces);
  return pieces;
}

bool is_refused_by(const Rule& rule, const std::string& name, const Scope& scope) {
  const auto captures = rule.refusal.empty() ? std::nullopt : rule.whole.match(name);
  return captures && applies(rule, *scope(*captures));
}

void refuse_by_rule(const Rule& rule, const std::string& name, const Scope& scope) {
  if (!is_refused_by(rule, name, scope)) return;
  throw Error(ErrorCode::unsupported,
              printable(name) + ": " + rule.refusal + "; leave it out with --drop, or say with --custom-mapping what it is");
}

std::optional<Made> take_piece(const Rule& rule, const std::string& name, const Lookup& lookup, const Scope& scope) {
  if (!rule.stacked.empty()) return std::nullopt;
  for (const RulePiece& piece : rule.pieces) {
    const auto captures = piece.name.match(name);
    const auto shared = captures ? shared_captures(rule, *captures) : std::nullopt;
    if (!shared) continue;
    const std::string whole = rule.whole.fill(*shared);
    const auto shape = lookup(whole);
    if (!shape) continue;
    const auto names = scope(*shared);
    if (!applies(rule, *names)) continue;
    if (!rule.axes) return renamed(whole, name, *shape, rule.whole_is_stored ? rule.add : -rule.add);
    const AxisSizes sizes = solve_sizes(*rule.axes, *shape, *names, whole);
    AxisSizes indices;
    for (const std::string& axis : piece.named) indices[axis] = number_of(*find_capture(*captures, axis));
    return piece_at(rule, piece, name, whole, sizes, indices, *names);
  }
  return std::nullopt;
}

std::optional<Made> join_pieces(const Rule& rule, const std::string& name, const std::optional<Shape>& shape, const Lookup& lookup,
                                const Scope& scope) {
  if (rule.rest_is_padding || !rule.stacked.empty() || !rule.refusal.empty()) return std::nullopt;  // nothing says what the padding held
  const auto captures = rule.whole.match(name);
  if (!captures) return std::nullopt;
  const auto names = scope(*captures);
  if (!applies(rule, *names)) return std::nullopt;
  const Captures known = with_computed(rule.computed, *captures, *names, name);
  if (!rule.axes) {
    const std::string from = rule.pieces.front().name.fill(known);
    const auto stored = lookup(from);
    if (!stored) return std::nullopt;
    return renamed(from, name, *stored, rule.whole_is_stored ? -rule.add : rule.add);
  }
  const auto sizes = shape ? solve_sizes(*rule.axes, *shape, *names, name) : SizesFromPieces(rule, name, known, lookup, *names).find();
  if (!sizes) return std::nullopt;
  const std::vector<Made> pieces = pieces_of(rule, name, *sizes, known, *names);
  if (shape && std::none_of(pieces.begin(), pieces.end(), [&](const Made& piece) { return lookup(piece.name).has_value(); }))
    return std::nullopt;
  Made whole{name, shape ? *shape : whole_shape(*rule.axes, *sizes, name), {}, {}, rule.whole_is_stored ? -rule.add : rule.add};
  for (const Made& piece : pieces) {
    const auto stored = lookup(piece.name);
    if (!stored) throw Error(ErrorCode::bad_input, printable(piece.name) + ": missing, " + printable(name) + " is made of it");
    if (!(*stored == piece.shape)) {
      throw Error(ErrorCode::bad_input,
                  printable(piece.name) + ": shape " + to_string(*stored) + ", " + printable(name) + " needs " + to_string(piece.shape));
    }
    for (const Term& term : piece.terms) {
      whole.terms.push_back(reversed(term));
      whole.terms.back().source = static_cast<TensorId>(whole.from.size());
    }
    whole.from.push_back(piece.name);
  }
  check_pieces(rule, name, whole.shape, pieces);
  return whole;
}

std::optional<std::string> whole_of(const Rule& rule, const std::string& piece_name) {
  for (const RulePiece& piece : rule.pieces) {
    const auto captures = piece.name.match(piece_name);
    const auto shared = captures ? shared_captures(rule, *captures) : std::nullopt;
    if (shared) return rule.whole.fill(*shared);
  }
  return std::nullopt;
}

}  // namespace unshard
