// How one tensor (the whole) and others (its pieces) share their elements, einops-like:
//
//     whole "e (p=2 i) h", piece "p=0: i h"
//
// A dimension of the whole is an axis or a product of axes (outermost first). The size of an axis is stated (`p=2`, `d=head_dim`, an
// expression without spaces) or follows from the shape. A piece takes one index of an axis (`p=0`), a range of it (`s=0:q_per_kv`), or,
// where its name has the axis as variable
// (`experts.{e}.up_proj`), one index per name; its other axes stand in its dimensions, in any order. `1` is a dimension of size 1.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "families/expression.h"
#include "unshard/targets.h"

namespace unshard {

/// Size by axis.
using AxisSizes = std::map<std::string, std::uint64_t, std::less<>>;

/// The dimensions of a tensor: for each, its axes from the outermost (none: a dimension of size 1).
struct Dimensions {
  std::vector<std::vector<std::string>> axes;
  [[nodiscard]] bool has(std::string_view axis) const;
};

/// The indices of an axis that a piece takes: [begin, end), or one, which then is no axis of the piece. A range may fall into `outer_size`
/// equal runs (`s=0:2*n@p=2`): then the axis is what runs within one, and `outer` an axis of the piece over them.
struct Selection {
  std::string axis;
  Expression begin;
  std::optional<Expression> end;
  std::string outer;  ///< "": none
  std::optional<Expression> outer_size;
};

struct WholeAxes {
  Dimensions dimensions;
  std::map<std::string, Expression, std::less<>> sizes;  ///< the stated ones
  std::string text;
};

struct PieceAxes {
  std::vector<Selection> selections;
  Dimensions dimensions;
  std::string text;
};

/// Local. Throw Error(bad_input) starting with `label`.
[[nodiscard]] WholeAxes parse_whole(std::string_view text, const std::string& label);
/// `named`: axes that the piece's name gives. Every axis of the whole must be named, selected or in a dimension, each once.
[[nodiscard]] PieceAxes parse_piece(std::string_view text, const WholeAxes& whole, const std::vector<std::string>& named,
                                    const std::string& label);

/// Local. All sizes of the whole, from the stated ones and its shape. Throws Error(bad_input) naming `tensor`, the dimensions expected and
/// the shape when they don't fit.
[[nodiscard]] AxisSizes solve_sizes(const WholeAxes& whole, const Shape& shape, const Names& names, const std::string& tensor);

/// One piece of a whole: its shape, and the term that fills it from the whole (or, reversed, its part of the whole from it).
struct PieceOfWhole {
  Shape shape;
  Term from_whole;  ///< source: the whole; `source` id not set
};
/// Local. `indices`: of the named axes. Throws Error(bad_input) naming `tensor` when a selection is outside its axis.
[[nodiscard]] PieceOfWhole place_piece(const WholeAxes& whole, const PieceAxes& piece, const AxisSizes& sizes, const AxisSizes& indices,
                                       const Names& names, const std::string& tensor);

/// Local, pure. The same elements, moved the other way.
[[nodiscard]] Term reversed(const Term& term);

}  // namespace unshard
