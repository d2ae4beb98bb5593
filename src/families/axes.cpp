#include "families/axes.h"

#include <algorithm>
#include <utility>

#include "checked_math.h"
#include "unshard/error.h"

namespace unshard {
namespace {

[[noreturn]] void refuse(const std::string& label, std::string_view text, const std::string& what) {
  throw Error(ErrorCode::bad_input, label + ": axes '" + printable(text) + "': " + what);
}

/// The words of `text`; parentheses are words of their own.
std::vector<std::string> words_of(std::string_view text) {
  std::vector<std::string> words;
  std::string word;
  const auto end_word = [&] {
    if (!word.empty()) words.push_back(std::exchange(word, {}));
  };
  for (const char c : text) {
    if (c == ' ' || c == '(' || c == ')') {
      end_word();
      if (c != ' ') words.emplace_back(1, c);
    } else {
      word += c;
    }
  }
  end_word();
  return words;
}

/// Dimensions from words; `size_of` gets what stands behind `=`.
template <class SizeOf>
Dimensions parse_dimensions(std::string_view text, const std::string& label, SizeOf size_of) {
  Dimensions dimensions;
  bool inside = false;
  std::size_t axis_count = 0;
  for (const std::string& word : words_of(text)) {
    if (word == "(" || word == ")") {
      if (inside == (word == "(")) refuse(label, text, "parentheses do not match");
      inside = word == "(";
      if (inside) dimensions.axes.emplace_back();
      continue;
    }
    if (!inside) dimensions.axes.emplace_back();
    if (word == "1") continue;
    const std::size_t equals = word.find('=');
    std::string axis = word.substr(0, equals);
    const bool is_name = !axis.empty() && std::all_of(axis.begin(), axis.end(), [](char c) { return (c >= 'a' && c <= 'z') || c == '_'; });
    if (!is_name) refuse(label, text, "'" + printable(word) + "' is no axis; write a name of small letters, or name=size");
    if (dimensions.has(axis)) refuse(label, text, "axis " + axis + " stands there twice");
    if (equals != std::string::npos) size_of(axis, word.substr(equals + 1));
    dimensions.axes.back().push_back(std::move(axis));
    if (++axis_count > 16) refuse(label, text, "more than 16 axes");
  }
  if (inside) refuse(label, text, "parentheses do not match");
  if (dimensions.axes.size() > max_rank) refuse(label, text, "more than 8 dimensions");
  return dimensions;
}

std::uint64_t value_of(const Expression& expression, const Names& names, const std::string& tensor) {
  const auto value = expression.value(names);
  if (!value)
    throw Error(ErrorCode::bad_input,
                names.where() + ": has no value for '" + expression.text() + "', which " + printable(tensor) + " needs");
  return *value;
}

std::uint64_t product_of(const std::vector<std::string>& axes, const AxisSizes& sizes) {
  std::uint64_t product = 1;
  for (const std::string& axis : axes) product *= sizes.find(axis)->second;  // bounded: sizes were solved against a shape
  return product;
}

/// Where an axis lies in a tensor.
struct Place {
  std::uint8_t dim = 0;
  std::uint64_t step = 1;
};

std::optional<Place> place_of(const Dimensions& dimensions, const std::string& axis, const AxisSizes& sizes) {
  for (std::size_t d = 0; d < dimensions.axes.size(); ++d) {
    const std::vector<std::string>& axes = dimensions.axes[d];
    const auto found = std::find(axes.begin(), axes.end(), axis);
    if (found == axes.end()) continue;
    return Place{static_cast<std::uint8_t>(d), product_of({found + 1, axes.end()}, sizes)};
  }
  return std::nullopt;
}

struct Taken {
  std::uint64_t begin = 0, end = 0;
};

}  // namespace

bool Dimensions::has(std::string_view axis) const {
  return std::any_of(axes.begin(), axes.end(),
                     [&](const auto& dimension) { return std::find(dimension.begin(), dimension.end(), axis) != dimension.end(); });
}

WholeAxes parse_whole(std::string_view text, const std::string& label) {
  WholeAxes whole;
  whole.text = text;
  whole.dimensions = parse_dimensions(
      text, label, [&](const std::string& axis, const std::string& size) { whole.sizes.emplace(axis, Expression::parse(size, label)); });
  return whole;
}

PieceAxes parse_piece(std::string_view text, const WholeAxes& whole, const std::vector<std::string>& named, const std::string& label) {
  PieceAxes piece;
  piece.text = text;
  std::vector<std::string> left_out = named;
  const std::size_t colon = text.rfind(':');
  if (colon != std::string_view::npos) {
    for (const std::string& word : words_of(text.substr(0, colon))) {
      const std::size_t equals = word.find('=');
      if (equals == std::string::npos || !whole.dimensions.has(word.substr(0, equals)))
        refuse(label, text, "'" + printable(word) + "' selects no axis of '" + whole.text + "'");
      const std::size_t runs = word.find('@');
      const std::string range = word.substr(equals + 1, runs == std::string::npos ? runs : runs - equals - 1);
      const std::size_t split = range.find(':');
      Selection selection{word.substr(0, equals), Expression::parse(range.substr(0, split), label), std::nullopt, "", std::nullopt};
      if (split != std::string::npos) selection.end = Expression::parse(range.substr(split + 1), label);
      if (runs != std::string::npos) {
        const std::string outer = word.substr(runs + 1);
        const std::size_t size = outer.find('=');
        selection.outer = outer.substr(0, size);
        if (size == std::string::npos || !selection.end || selection.outer.empty() || whole.dimensions.has(selection.outer))
          refuse(label, text, "'" + printable(word) + "' needs a range and an axis of its own, as in s=0:2*n@p=2");
        selection.outer_size = Expression::parse(outer.substr(size + 1), label);
      }
      if (!selection.end) left_out.push_back(selection.axis);
      piece.selections.push_back(std::move(selection));
    }
  }
  piece.dimensions = parse_dimensions(colon == std::string_view::npos ? text : text.substr(colon + 1), label,
                                      [&](const std::string& axis, const std::string&) {
                                        refuse(label, text, "the size of " + axis + " belongs to '" + whole.text + "'");
                                      });
  for (const Selection& selection : piece.selections) {
    if (selection.end && !piece.dimensions.has(selection.axis))
      refuse(label, text, "the range of " + selection.axis + " is in no dimension");
  }
  std::size_t used = 0;
  for (const Selection& selection : piece.selections) {
    if (selection.outer.empty()) continue;
    if (!piece.dimensions.has(selection.outer)) refuse(label, text, "axis " + selection.outer + " is in no dimension");
    ++used;
  }
  for (const auto& dimension : whole.dimensions.axes) {
    for (const std::string& axis : dimension) {
      const auto times = std::count(left_out.begin(), left_out.end(), axis) + (piece.dimensions.has(axis) ? 1 : 0);
      if (times != 1)
        refuse(label, text, "axis " + axis + " of '" + whole.text + "' is taken " + std::to_string(times) + " times, not once");
      if (piece.dimensions.has(axis)) ++used;
    }
  }
  std::size_t own = 0;
  for (const auto& dimension : piece.dimensions.axes) own += dimension.size();
  if (own != used) refuse(label, text, "has an axis that '" + whole.text + "' lacks");
  return piece;
}

AxisSizes solve_sizes(const WholeAxes& whole, const Shape& shape, const Names& names, const std::string& tensor) {
  AxisSizes sizes;
  std::string stated;
  for (const auto& [axis, expression] : whole.sizes) {
    sizes[axis] = value_of(expression, names, tensor);
    stated += (stated.empty() ? " with " : ", ") + axis + " = " + std::to_string(sizes[axis]);
  }
  const auto misfit = [&] {
    throw Error(ErrorCode::bad_input, printable(tensor) + ": stored shape " + to_string(shape) + " does not fit '" + whole.text + "'" +
                                          stated + " (from " + names.where() + ")");
  };
  if (shape.size() != whole.dimensions.axes.size()) misfit();
  for (std::size_t d = 0; d < shape.size(); ++d) {
    std::uint64_t known = 1;
    const std::string* unknown = nullptr;
    for (const std::string& axis : whole.dimensions.axes[d]) {
      const auto size = sizes.find(axis);
      if (size == sizes.end()) {
        if (unknown != nullptr)
          throw Error(ErrorCode::bad_input,
                      printable(tensor) + ": '" + whole.text + "' leaves the sizes of " + *unknown + " and " + axis + " open");
        unknown = &axis;
        continue;
      }
      const auto product = checked_multiply(known, size->second);
      if (!product) misfit();
      known = *product;
    }
    if (unknown != nullptr && (known == 0 || shape[d] % known != 0)) misfit();
    if (unknown == nullptr && known != shape[d]) misfit();
    if (unknown != nullptr) sizes[*unknown] = shape[d] / known;
  }
  return sizes;
}

PieceOfWhole place_piece(const WholeAxes& whole, const PieceAxes& piece, const AxisSizes& sizes, const AxisSizes& indices,
                         const Names& names, const std::string& tensor) {
  std::map<std::string, Taken, std::less<>> taken;
  AxisSizes own;  // sizes within the piece
  for (const auto& [axis, size] : sizes) {
    taken[axis] = {0, size};
    if (const auto index = indices.find(axis); index != indices.end()) taken[axis] = {index->second, index->second + 1};
  }
  for (const Selection& selection : piece.selections) {
    const std::uint64_t begin = value_of(selection.begin, names, tensor);
    taken[selection.axis] = {begin, selection.end ? value_of(*selection.end, names, tensor) : begin + 1};
  }
  for (const auto& [axis, range] : taken) {
    if (range.begin > range.end || range.end > sizes.find(axis)->second) {
      throw Error(ErrorCode::bad_input, printable(tensor) + ": '" + piece.text + "' takes " + axis + " = " + std::to_string(range.begin) +
                                            ":" + std::to_string(range.end) + " of " + std::to_string(sizes.find(axis)->second));
    }
    own[axis] = range.end - range.begin;
  }
  for (const Selection& selection : piece.selections) {
    if (!selection.outer_size) continue;
    const std::uint64_t runs = value_of(*selection.outer_size, names, tensor), length = own[selection.axis];
    if (runs == 0 || length % runs != 0) {
      throw Error(ErrorCode::bad_input,
                  printable(tensor) + ": '" + piece.text + "' divides " + std::to_string(length) + " by " + std::to_string(runs));
    }
    own[selection.outer] = runs;
    own[selection.axis] = length / runs;
  }
  PieceOfWhole placed;
  for (const auto& dimension : piece.dimensions.axes) placed.shape.push_back(product_of(dimension, own));
  placed.from_whole.source_start = Shape::filled(whole.dimensions.axes.size(), 0);
  placed.from_whole.target_start = Shape::filled(placed.shape.size(), 0);
  for (const auto& dimension : whole.dimensions.axes) {
    for (const std::string& axis : dimension) {
      const Place in_whole = *place_of(whole.dimensions, axis, sizes);
      placed.from_whole.source_start[in_whole.dim] += taken[axis].begin * in_whole.step;
      for (const Selection& selection : piece.selections) {
        if (selection.axis != axis || selection.outer.empty()) continue;
        const Place outer = *place_of(piece.dimensions, selection.outer, own);
        placed.from_whole.axes.push_back({own[selection.outer], in_whole.dim, outer.dim, in_whole.step * own[axis], outer.step});
      }
      const auto in_piece = place_of(piece.dimensions, axis, own);
      if (in_piece) placed.from_whole.axes.push_back({own[axis], in_whole.dim, in_piece->dim, in_whole.step, in_piece->step});
    }
  }
  return placed;
}

Term reversed(const Term& term) {
  Term back{term.source, term.target_start, term.source_start, {}};
  for (const Axis& axis : term.axes)
    back.axes.push_back({axis.extent, axis.target_dim, axis.source_dim, axis.target_step, axis.source_step});
  return back;
}

}  // namespace unshard
