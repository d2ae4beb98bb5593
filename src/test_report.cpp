#include "test_report.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <set>

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

Json json_of(const Shape& shape) {
  return std::vector<std::uint64_t>(shape.begin(), shape.end());
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
    return std::to_string(report.tensors) + " tensors equal (" + std::to_string(report.parameters) + " parameters, " + limits + ")";
  }
  const std::size_t differing = differing_tensors(report);
  return std::to_string(differing) + (differing == 1 ? " tensor differs" : " tensors differ") + " (the reference has " +
         std::to_string(report.tensors) + "; " + limits + "): " + std::to_string(report.missing.size()) + " missing, " +
         std::to_string(report.unexpected.size()) + " unexpected, " + std::to_string(report.shapes.size()) + " of another shape, " +
         std::to_string(report.dtypes.size()) + " of another dtype, " + std::to_string(report.values.size()) + " of other values";
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

}  // namespace

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
  const Json json{{"equal", is_equal(report)},
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
  return json.dump(2, ' ', false, Json::error_handler_t::replace);
}

}  // namespace unshard
