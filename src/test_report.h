// What `test` found, as lines for a person and as JSON.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "unshard/arithmetic.h"
#include "unshard/tensor.h"

namespace unshard {

/// A tensor that only one side has.
struct OneSided {
  std::string name;
  DType dtype = DType::f32;
  Shape shape;
};

struct ShapeDifference {
  std::string name;
  Shape merged, reference;
};

struct DTypeDifference {
  std::string name;
  DType merged = DType::f32, reference = DType::f32;
};

struct ValueDifference {
  std::string name;
  Shape shape;
  Difference difference;
};

/// What changed since a base model (--base).
struct ChangeReport {
  std::string base;                    ///< the folder
  std::uint64_t tensors = 0;           ///< compared with the base
  std::uint64_t elements = 0;          ///< of these
  std::uint64_t others = 0;            ///< tensors of another shape, or of a type that can't be compared
  std::vector<OneSided> added, removed;
  std::vector<ValueDifference> values;  ///< of tensors that changed
};
/// Local, pure. Whether anything differs from the base.
[[nodiscard]] bool has_changes(const ChangeReport& report);

struct TestReport {
  std::string merged, reference;  ///< the folders
  Tolerance tolerance;
  bool like_dtype = false;
  std::uint64_t tensors = 0;     ///< of the reference
  std::uint64_t parameters = 0;  ///< compared
  std::vector<OneSided> missing, unexpected;
  std::vector<ShapeDifference> shapes;
  std::vector<DTypeDifference> dtypes;
  std::vector<ValueDifference> values;
  bool all_tensors = false;               ///< `compared` is filled, and in the JSON
  std::vector<ValueDifference> compared;  ///< every pair that was compared, different or not
  std::optional<ChangeReport> changes;
  std::vector<std::string> tied;  ///< heads that one side stores and that equal its embedding
};

/// Local, pure. Whether there is no difference.
[[nodiscard]] bool is_equal(const TestReport& report);
/// Local, pure. One line per difference, worst first (names, shapes, types, then values by their largest absolute difference), and a
/// summary.
[[nodiscard]] std::vector<std::string> to_lines(const TestReport& report);
/// Local, pure. Everything, in the same order.
[[nodiscard]] std::string to_json(const TestReport& report);

}  // namespace unshard
