// What `test` found, as lines for a person and as JSON.
#pragma once

#include <cstdint>
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
