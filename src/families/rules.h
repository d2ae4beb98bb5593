// One rule of a family: a tensor (the whole) that corresponds to one or several others (its pieces). Read from JSON by families.cpp; the
// grammar is described in docs/families.md. A rule says which side the checkpoint has, but since it only moves elements it can be used in
// both directions.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "families/axes.h"
#include "families/name_pattern.h"

namespace unshard {

struct RulePiece {
  NamePattern name;
  std::vector<PieceAxes> parts;    ///< one behind the other along dimension `along`; none in a rename
  std::vector<std::string> named;  ///< axes whose index the name has
  std::size_t along = 0;
};

struct Rule {
  NamePattern whole;
  std::optional<WholeAxes> axes;  ///< none: a rename, any shape
  std::string stacked;            ///< of a rename: the variable that the first dimension of the whole runs over; "": none
  std::vector<RulePiece> pieces;
  std::vector<std::pair<std::string, Expression>> computed;  ///< the computed variables of the pieces' names
  bool whole_is_stored = true;                               ///< false: the checkpoint has the pieces
  bool rest_is_padding = false;                              ///< the pieces need not cover the whole (a padded vocabulary)
  bool only_for_like = false;      ///< not a difference between modules and published files; used where --like asks for it
  float add = 0;                   ///< to every element, on the way from the checkpoint to the published folder
  std::string refusal;             ///< such a tensor can't be translated, and why; then there are no pieces
  std::optional<Expression> when;  ///< over config.json and the numbers in the whole's name
};

/// A tensor made from others: `from` names what each term reads (term.source is its position there).
struct Made {
  std::string name;
  Shape shape;
  std::vector<std::string> from;
  std::vector<Term> terms;
  float add = 0;  ///< to every element
};

/// Shape of a tensor by name, if there is such a tensor.
using Lookup = std::function<std::optional<Shape>(const std::string& name)>;
/// Names of config.json with the variables of a rule's captures in front.
using Scope = std::function<std::unique_ptr<Names>(const Captures& captures)>;

/// Local. The computed variables of `pattern`, as expressions. Throws Error(bad_input) starting with `label`.
[[nodiscard]] std::vector<std::pair<std::string, Expression>> computed_variables(const NamePattern& pattern, const std::string& label);
/// Local, pure. `captures`, and what is computed from them. Throws Error(bad_input) when config.json lacks what `tensor` needs.
[[nodiscard]] Captures with_computed(const std::vector<std::pair<std::string, Expression>>& computed, Captures captures, const Names& names,
                                     const std::string& tensor);

/// Local, pure. The pieces of the whole `name` of `shape`, in the order of the rule, by index; none when the rule is not about it. Throws
/// Error(bad_input) naming it when it is but the shape does not fit, or when the pieces do not cover it.
[[nodiscard]] std::optional<std::vector<Made>> split_whole(const Rule& rule, const std::string& name, const Shape& shape,
                                                           const Scope& scope);

/// Local, pure. Whether the rule says that a tensor of this name can't be translated.
[[nodiscard]] bool is_refused_by(const Rule& rule, const std::string& name, const Scope& scope);
/// Local, pure. Then throws Error(unsupported) with the rule's reason.
void refuse_by_rule(const Rule& rule, const std::string& name, const Scope& scope);

/// Local, pure. The one piece `name`, if its whole is there.
[[nodiscard]] std::optional<Made> take_piece(const Rule& rule, const std::string& name, const Lookup& lookup, const Scope& scope);

/// Local, pure. The whole `name` put together from its pieces; none when the rule is not about it or no piece is there. `shape` where it is
/// known. Throws Error(bad_input) naming the missing or misshapen piece.
[[nodiscard]] std::optional<Made> join_pieces(const Rule& rule, const std::string& name, const std::optional<Shape>& shape,
                                              const Lookup& lookup, const Scope& scope);

/// Local, pure. The name of the whole that `piece` belongs to, if it is one of the rule's pieces.
[[nodiscard]] std::optional<std::string> whole_of(const Rule& rule, const std::string& piece);

}  // namespace unshard
