// The proof that the terms of a target cover it exactly once.
//
// The places that a term writes are a product of one set per target dimension, and each set is a sum of axes (mixed radix). So: every term
// stays inside its source and the target, no term writes a place twice (each step is longer than all inner steps together can reach), no
// two terms meet, and the volumes add up to the target's. Two sets of a dimension can't meet when their bounds don't, or when modulo a
// common step their bounds don't (interleaved halves; the groups of a fused qkv).
#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "checked_math.h"
#include "unshard/error.h"
#include "unshard/targets.h"

namespace unshard {
namespace {

[[noreturn]] void fail(const Target& target, const std::string& what) {
  throw Error(ErrorCode::internal, printable(target.name) + ": " + what + "; please report this with the model's config.json");
}

/// start + sum of i_k * step_k, in one dimension.
struct Line {
  std::uint64_t start = 0;
  std::uint64_t last = 0;                                      ///< the largest value
  std::vector<std::pair<std::uint64_t, std::uint64_t>> steps;  ///< step, extent (more than 1); by descending step
};

/// One line per dimension of the source (`by_target` false) or the target. None when a value overflows or lies outside `shape`.
std::optional<std::vector<Line>> lines_of(const Term& term, const Shape& shape, bool by_target) {
  const Shape& start = by_target ? term.target_start : term.source_start;
  if (start.size() != shape.size()) return std::nullopt;
  std::vector<Line> lines(shape.size());
  for (std::size_t d = 0; d < shape.size(); ++d) lines[d].start = lines[d].last = start[d];
  for (const Axis& axis : term.axes) {
    const std::size_t d = by_target ? axis.target_dim : axis.source_dim;
    const std::uint64_t step = by_target ? axis.target_step : axis.source_step;
    if (d >= shape.size() || axis.extent == 0 || step == 0) return std::nullopt;
    const auto reach = checked_multiply(axis.extent - 1, step);
    const auto last = reach ? checked_add(lines[d].last, *reach) : std::nullopt;
    if (!last) return std::nullopt;
    lines[d].last = *last;
    if (axis.extent > 1) lines[d].steps.emplace_back(step, axis.extent);
  }
  for (std::size_t d = 0; d < shape.size(); ++d) {
    if (lines[d].last >= shape[d]) return std::nullopt;
    std::sort(lines[d].steps.rbegin(), lines[d].steps.rend());
  }
  return lines;
}

/// Whether all values of the line are different.
bool is_injective(const Line& line) {
  std::uint64_t reach = 0;
  for (auto step = line.steps.rbegin(); step != line.steps.rend(); ++step) {
    if (step->first <= reach) return false;
    reach += step->first * (step->second - 1);
  }
  return true;
}

/// The bounds of the line modulo `step`; none when they wrap round.
std::optional<std::pair<std::uint64_t, std::uint64_t>> bounds_modulo(const Line& line, std::uint64_t step) {
  std::uint64_t last = line.start % step;
  const std::uint64_t first = last;
  for (const auto& [inner, extent] : line.steps) {
    if (inner % step != 0) last += inner * (extent - 1);
  }
  if (last >= step) return std::nullopt;
  return std::pair{first, last};
}

bool apart(const Line& a, const Line& b) {
  if (a.last < b.start || b.last < a.start) return true;
  const auto apart_modulo = [&](std::uint64_t step) {
    const auto first = bounds_modulo(a, step);
    const auto second = bounds_modulo(b, step);
    return first && second && (first->second < second->first || second->second < first->first);
  };
  return std::any_of(a.steps.begin(), a.steps.end(), [&](const auto& step) { return apart_modulo(step.first); }) ||
         std::any_of(b.steps.begin(), b.steps.end(), [&](const auto& step) { return apart_modulo(step.first); });
}

bool apart(const std::vector<Line>& a, const std::vector<Line>& b) {
  for (std::size_t d = 0; d < a.size(); ++d) {
    if (apart(a[d], b[d])) return true;
  }
  return false;
}

/// All terms, sorted by their first place in dimension 0, are compared only while their bounds there overlap: of a stack of experts only
/// neighbours are.
bool all_apart(std::vector<std::vector<Line>> terms) {
  if (terms.size() < 2) return true;
  if (terms.front().empty()) return false;
  std::sort(terms.begin(), terms.end(), [](const auto& a, const auto& b) { return a.front().start < b.front().start; });
  for (std::size_t i = 0; i < terms.size(); ++i) {
    for (std::size_t j = i + 1; j < terms.size() && terms[j].front().start <= terms[i].front().last; ++j) {
      if (!apart(terms[i], terms[j])) return false;
    }
  }
  return true;
}

}  // namespace

namespace {

void check_terms(const Target& target, const std::vector<TensorRow>& table) {
  const std::uint64_t whole_volume = volume(target.shape);
  std::uint64_t covered = 0;
  std::vector<std::vector<Line>> places;
  for (const Term& term : target.terms) {
    if (std::any_of(term.axes.begin(), term.axes.end(), [](const Axis& axis) { return axis.extent == 0; })) continue;
    if (term.source >= table.size())
      fail(target, "made from tensor number " + std::to_string(term.source) + " of " + std::to_string(table.size()));
    const TensorRow& source = table[term.source];
    if (!lines_of(term, source.shape, false)) {
      fail(target, "a part reaches outside " + printable(source.name) + " of shape " + to_string(source.shape));
    }
    auto lines = lines_of(term, target.shape, true);
    if (!lines) fail(target, "a part of " + printable(source.name) + " reaches outside the shape " + to_string(target.shape));
    std::uint64_t elements = 1;
    for (const Line& line : *lines) {
      if (!is_injective(line)) fail(target, "a part of " + printable(source.name) + " writes a place twice");
      for (const auto& step : line.steps) elements *= step.second;
    }
    covered += elements;
    if (covered > whole_volume) break;
    places.push_back(std::move(*lines));
  }
  if (covered != whole_volume) {
    fail(target, "its parts hold " + std::to_string(covered) + " elements, the shape " + to_string(target.shape) + " has " +
                     std::to_string(whole_volume));
  }
  if (!all_apart(std::move(places))) fail(target, "two of its parts overlap");
}

void check_factor(const Target& target, const Factor& factor, const std::vector<TensorRow>& table) {
  check_terms({"a factor of " + target.name, DType::f32, {factor.rows, factor.columns}, {factor.term}, {}}, table);
}

void check_addend(const Target& target, const Addend& addend, const std::vector<TensorRow>& table) {
  const MatrixShape matrix = matrix_of(target.shape);
  const auto inside = [](std::uint64_t first, std::uint64_t count, std::uint64_t all) {
    return count > 0 && first < all && count <= all - first;
  };
  if (!inside(addend.first_row, addend.left.rows, matrix.rows) || !inside(addend.first_column, addend.columns(), matrix.columns))
    fail(target, "what is added to it reaches outside the shape " + to_string(target.shape));
  if (addend.right && addend.left.columns != addend.right->rows) fail(target, "factors of different inner sizes are multiplied");
  check_factor(target, addend.left, table);
  if (addend.right) check_factor(target, *addend.right, table);
}

}  // namespace

void check_target(const Target& target, const std::vector<TensorRow>& table) {
  check_terms(target, table);
  if (!target.computation) return;
  for (const Addend& addend : target.computation->addends) check_addend(target, addend, table);
  const MatrixShape matrix = matrix_of(target.shape);
  const Computation& computation = *target.computation;
  if ((!computation.row_factors.empty() && computation.row_factors.size() != matrix.rows) ||
      (!computation.column_factors.empty() && computation.column_factors.size() != matrix.columns))
    fail(target, "it has another number of factors than rows or columns");
}

}  // namespace unshard
