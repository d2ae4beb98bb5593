#include "test_report.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <set>

#include "json_text.h"
#include "unshard/error.h"

namespace unshard {
namespace {

using Json = nlohmann::ordered_json;

std::string text_of(double value) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.9g", value);
  return text.data();
}

/// JSON has no infinities and no NaN: those become texts.
Json json_of(double value) {
  return std::isfinite(value) ? Json(value) : Json(text_of(value));
}

/// The index of element number `position`.
Shape index_of(std::uint64_t position, const Shape& shape) {
  Shape index = shape;
  for (std::size_t d = shape.size(); d-- > 0;) {
    index[d] = position % shape[d];
    position /= shape[d];
  }
  return index;
}

double cosine(const Difference& of) {
  const double product = std::sqrt(of.square_a) * std::sqrt(of.square_b);
  return product > 0 ? of.dot / product : std::nan("");
}
double rms(const Difference& of) {
  return of.pairs > 0 ? std::sqrt(of.square_difference / static_cast<double>(of.pairs)) : std::nan("");
}

std::vector<const ValueDifference*> worst_first(const std::vector<ValueDifference>& values) {
  std::vector<const ValueDifference*> sorted;
  for (const ValueDifference& value : values) sorted.push_back(&value);
  std::ranges::stable_sort(sorted, [](const auto* x, const auto* y) { return x->difference.max_abs > y->difference.max_abs; });
  return sorted;
}

std::string line_of(const OneSided& tensor, std::string_view what, std::string_view where) {
  return std::string(what) + ": " + printable(tensor.name) + " " + to_string(tensor.shape) + " " + std::string(info(tensor.dtype).name) +
         " is only in the " + std::string(where);
}

std::string line_of(const ValueDifference& value) {
  const Difference& found = value.difference;
  return "values differ: " + printable(value.name) + ": " + std::to_string(found.count) + " of " + std::to_string(volume(value.shape)) +
         " elements, by at most " + text_of(found.max_abs) + " at " + to_string(index_of(found.worst_position, value.shape)) + " (merged " +
         text_of(found.worst_a) + ", reference " + text_of(found.worst_b) + "), relative at most " + text_of(found.max_rel);
}

std::size_t differing_tensors(const TestReport& report) {
  std::set<std::string_view> names;
  for (const auto* list : {&report.missing, &report.unexpected}) {
    for (const OneSided& tensor : *list) names.insert(tensor.name);
  }
  for (const auto& shape : report.shapes) names.insert(shape.name);
  for (const auto& dtype : report.dtypes) names.insert(dtype.name);
  for (const auto& value : report.values) names.insert(value.name);
  return names.size();
}

std::string summary(const TestReport& report) {
  const std::string limits = "atol " + text_of(report.tolerance.atol) + ", rtol " + text_of(report.tolerance.rtol);
  if (is_equal(report)) {
    return counted(report.tensors, "tensor") + " equal (" + std::to_string(report.parameters) + " parameters, " + limits + ")";
  }
  const std::size_t differing = differing_tensors(report);
  return std::to_string(differing) + (differing == 1 ? " tensor differs" : " tensors differ") + " (the reference has " +
         std::to_string(report.tensors) + "; " + limits + "): " + std::to_string(report.missing.size()) + " missing, " +
         std::to_string(report.unexpected.size()) + " unexpected, " + std::to_string(report.shapes.size()) + " of another shape, " +
         std::to_string(report.dtypes.size()) + " of another dtype, " + std::to_string(report.values.size()) + " of other values";
}

std::uint64_t changed_elements(const ChangeReport& report) {
  std::uint64_t count = 0;
  for (const ValueDifference& value : report.values) count += value.difference.count;
  return count;
}

/// ‖merged - base‖ / ‖base‖ over the tensors that changed.
double relative_change(const ChangeReport& report) {
  double change = 0, base = 0;
  for (const ValueDifference& value : report.values) {
    change += value.difference.square_difference;
    base += value.difference.square_a;
  }
  return base > 0 ? std::sqrt(change / base) : std::nan("");
}

std::string line_of(const ChangeReport& report) {
  const std::string base = printable(report.base, 4096);
  if (!has_changes(report)) {
    return "Nothing changed from the base model " + base + ": all " + counted(report.tensors, "tensor") + " (" +
           counted(report.elements, "parameter") + ") are equal; was this checkpoint trained?";
  }
  std::string text = "Changed from the base model " + base + ": " + std::to_string(report.values.size()) + " of " +
                     counted(report.tensors, "tensor") + ", " + std::to_string(changed_elements(report)) + " of " +
                     counted(report.elements, "parameter");
  if (!report.values.empty()) {
    const ValueDifference& most = *worst_first(report.values).front();
    text += "; relative change of these tensors " + text_of(relative_change(report)) + ", largest " + text_of(most.difference.max_abs) +
            " in " + printable(most.name);
  }
  if (!report.added.empty()) text += "; " + counted(report.added.size(), "tensor") + " that the base lacks";
  if (!report.removed.empty()) text += "; " + counted(report.removed.size(), "tensor") + " that only the base has";
  if (report.others > 0) text += "; " + counted(report.others, "tensor") + " of another shape or kind of type";
  return text;
}

Json json_of(const std::vector<OneSided>& tensors) {
  Json list = Json::array();
  for (const OneSided& tensor : tensors) {
    list.push_back({{"name", tensor.name}, {"dtype", info(tensor.dtype).name}, {"shape", json_of(tensor.shape)}});
  }
  return list;
}

Json json_of(const ValueDifference& value) {
  const Difference& found = value.difference;
  return {{"name", value.name},
          {"shape", json_of(value.shape)},
          {"elements", volume(value.shape)},
          {"different", found.count},
          {"max_abs", json_of(found.max_abs)},
          {"max_rel", json_of(found.max_rel)},
          {"worst",
           {{"index", json_of(index_of(found.worst_position, value.shape))},
            {"merged", json_of(found.worst_a)},
            {"reference", json_of(found.worst_b)}}},
          {"cosine", json_of(cosine(found))},
          {"rms", json_of(rms(found))}};
}

/// A tensor whose bits are all equal has no sums: its direction is the same, whatever it is.
Json compared_json(const ValueDifference& value) {
  const Difference& found = value.difference;
  const bool same = found.pairs == 0;
  return {{"name", value.name},
          {"elements", volume(value.shape)},
          {"different", found.count},
          {"cosine", same ? Json(1.0) : json_of(cosine(found))},
          {"rms", same ? Json(0.0) : json_of(rms(found))}};
}

Json json_of(const ChangeReport& report) {
  Json values = Json::array();
  for (const ValueDifference* value : worst_first(report.values)) {
    Json entry = json_of(*value);
    entry["worst"] = {{"index", entry["worst"]["index"]}, {"base", entry["worst"]["merged"]}, {"merged", entry["worst"]["reference"]}};
    values.push_back(std::move(entry));
  }
  return {{"base", report.base},
          {"changed", has_changes(report)},
          {"tensors", report.tensors},
          {"tensors_changed", report.values.size()},
          {"parameters", report.elements},
          {"parameters_changed", changed_elements(report)},
          {"relative_change", json_of(relative_change(report))},
          {"added", json_of(report.added)},
          {"removed", json_of(report.removed)},
          {"not_compared", report.others},
          {"values", std::move(values)}};
}

}  // namespace

bool has_changes(const ChangeReport& report) {
  return !report.values.empty() || !report.added.empty() || !report.removed.empty() || report.others > 0;
}

bool is_equal(const TestReport& report) {
  return report.missing.empty() && report.unexpected.empty() && report.shapes.empty() && report.dtypes.empty() && report.values.empty();
}

std::vector<std::string> to_lines(const TestReport& report) {
  std::vector<std::string> lines;
  for (const OneSided& tensor : report.missing) lines.push_back(line_of(tensor, "missing", "reference"));
  for (const OneSided& tensor : report.unexpected) lines.push_back(line_of(tensor, "unexpected", "merged model"));
  for (const ShapeDifference& of : report.shapes) {
    lines.push_back("shape differs: " + printable(of.name) + ": merged " + to_string(of.merged) + ", reference " + to_string(of.reference));
  }
  for (const DTypeDifference& of : report.dtypes) {
    lines.push_back("dtype differs: " + printable(of.name) + ": merged " + std::string(info(of.merged).name) + ", reference " +
                    std::string(info(of.reference).name));
  }
  for (const ValueDifference* value : worst_first(report.values)) lines.push_back(line_of(*value));
  for (const std::string& name : report.tied)
    lines.push_back(printable(name) + " is stored on one side only and equals the embedding: no difference");
  lines.push_back(summary(report));
  if (report.changes) lines.push_back(line_of(*report.changes));
  return lines;
}

std::string to_json(const TestReport& report) {
  Json shapes = Json::array(), dtypes = Json::array(), values = Json::array();
  for (const ShapeDifference& of : report.shapes) {
    shapes.push_back({{"name", of.name}, {"merged", json_of(of.merged)}, {"reference", json_of(of.reference)}});
  }
  for (const DTypeDifference& of : report.dtypes) {
    dtypes.push_back({{"name", of.name}, {"merged", info(of.merged).name}, {"reference", info(of.reference).name}});
  }
  for (const ValueDifference* value : worst_first(report.values)) values.push_back(json_of(*value));
  Json json{{"equal", is_equal(report)},
            {"merged", report.merged},
            {"reference", report.reference},
            {"atol", json_of(report.tolerance.atol)},
            {"rtol", json_of(report.tolerance.rtol)},
            {"like_dtype", report.like_dtype},
            {"tensors", report.tensors},
            {"parameters", report.parameters},
            {"missing", json_of(report.missing)},
            {"unexpected", json_of(report.unexpected)},
            {"shape_differs", shapes},
            {"dtype_differs", dtypes},
            {"values_differ", values},
            {"tied", report.tied}};
  if (report.all_tensors) {
    Json compared = Json::array();
    for (const ValueDifference& value : report.compared) compared.push_back(compared_json(value));
    json["compared"] = std::move(compared);
  }
  if (report.changes) json["base"] = json_of(*report.changes);
  return json.dump(2, ' ', false, Json::error_handler_t::replace);
}

}  // namespace unshard
