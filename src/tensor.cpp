#include "unshard/tensor.h"

#include <algorithm>
#include <limits>

#include "checked_math.h"
#include "unshard/error.h"

namespace unshard {
namespace {

// Names: torch/storage.py (_dtype_to_storage_type_map), c10/core/ScalarType.h; safetensors/src/tensor.rs (Dtype). In the order of DType.
constexpr std::array dtype_rows{
    DTypeInfo{DType::f64, "float64", "F64", 8, 8, true},
    DTypeInfo{DType::f32, "float32", "F32", 4, 4, true},
    DTypeInfo{DType::f16, "float16", "F16", 2, 2, true},
    DTypeInfo{DType::bf16, "bfloat16", "BF16", 2, 2, true},
    DTypeInfo{DType::i64, "int64", "I64", 8, 8, false},
    DTypeInfo{DType::i32, "int32", "I32", 4, 4, false},
    DTypeInfo{DType::i16, "int16", "I16", 2, 2, false},
    DTypeInfo{DType::i8, "int8", "I8", 1, 1, false},
    DTypeInfo{DType::u8, "uint8", "U8", 1, 1, false},
    DTypeInfo{DType::boolean, "bool", "BOOL", 1, 1, false},
    DTypeInfo{DType::u16, "uint16", "U16", 2, 2, false},
    DTypeInfo{DType::u32, "uint32", "U32", 4, 4, false},
    DTypeInfo{DType::u64, "uint64", "U64", 8, 8, false},
    DTypeInfo{DType::f8_e4m3, "float8_e4m3fn", "F8_E4M3", 1, 1, false},
    DTypeInfo{DType::f8_e5m2, "float8_e5m2", "F8_E5M2", 1, 1, false},
    DTypeInfo{DType::f8_e4m3fnuz, "float8_e4m3fnuz", "F8_E4M3FNUZ", 1, 1, false},
    DTypeInfo{DType::f8_e5m2fnuz, "float8_e5m2fnuz", "F8_E5M2FNUZ", 1, 1, false},
    DTypeInfo{DType::f8_e8m0, "float8_e8m0fnu", "F8_E8M0", 1, 1, false},
    DTypeInfo{DType::f4_x2, "float4_e2m1fn_x2", "F4", 1, 1, false},
    DTypeInfo{DType::c32, "complex32", "", 4, 2, false},
    DTypeInfo{DType::c64, "complex64", "C64", 8, 4, false},
    DTypeInfo{DType::c128, "complex128", "", 16, 8, false},
};

constexpr bool rows_are_in_order() {
  for (std::size_t i = 0; i < dtype_rows.size(); ++i) {
    if (static_cast<std::size_t>(dtype_rows[i].dtype) != i) return false;
  }
  return true;
}
static_assert(rows_are_in_order());

}  // namespace

std::span<const DTypeInfo> dtype_table() {
  return dtype_rows;
}
const DTypeInfo& info(DType dtype) {
  return dtype_rows.at(static_cast<std::size_t>(dtype));
}

std::optional<DType> dtype_from_torch(std::string_view name) {
  for (const DTypeInfo& row : dtype_rows) {
    if (row.name == name) return row.dtype;
  }
  return std::nullopt;
}

std::optional<DType> dtype_from_safetensors(std::string_view name) {
  for (const DTypeInfo& row : dtype_rows) {
    if (!name.empty() && row.safetensors == name) return row.dtype;
  }
  return std::nullopt;
}

Shape::Shape(std::initializer_list<std::uint64_t> values) : Shape(std::span(values.begin(), values.size())) {}

Shape::Shape(std::span<const std::uint64_t> values) {
  if (values.size() > max_rank) {
    throw Error(ErrorCode::unsupported,
                "a tensor of " + std::to_string(values.size()) + " dimensions; at most " + std::to_string(max_rank) + " are handled");
  }
  std::copy(values.begin(), values.end(), values_.begin());
  rank_ = values.size();
}

Shape Shape::filled(std::size_t rank, std::uint64_t value) {
  Shape shape;
  for (std::size_t i = 0; i < rank; ++i) shape.push_back(value);
  return shape;
}

void Shape::push_back(std::uint64_t value) {
  if (rank_ == max_rank) throw Error(ErrorCode::unsupported, "a tensor of more than " + std::to_string(max_rank) + " dimensions");
  values_[rank_++] = value;
}

bool operator==(const Shape& a, const Shape& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end());
}

std::uint64_t volume(const Shape& shape) {
  std::uint64_t count = 1;
  for (const std::uint64_t extent : shape) {
    if (extent == 0) return 0;
  }
  for (const std::uint64_t extent : shape) {
    const auto product = checked_multiply(count, extent);
    if (!product || *product > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
      throw Error(ErrorCode::bad_input, "a tensor of shape " + to_string(shape) + " has more than 2^63 elements");
    }
    count = *product;
  }
  return count;
}

Shape row_major_strides(const Shape& shape) {
  Shape strides = Shape::filled(shape.size(), 1);
  for (std::size_t i = shape.size(); i-- > 1;) strides[i - 1] = strides[i] * shape[i];
  return strides;
}

std::string to_string(const Shape& shape) {
  std::string out = "[";
  for (std::size_t i = 0; i < shape.size(); ++i) out += (i > 0 ? ", " : "") + std::to_string(shape[i]);
  return out + "]";
}

Box whole(const Shape& shape) {
  return {Shape::filled(shape.size(), 0), shape};
}

std::optional<Box> intersect(const Box& a, const Box& b) {
  Box common{a.offset, a.extent};
  for (std::size_t i = 0; i < a.offset.size(); ++i) {
    const std::uint64_t begin = std::max(a.offset[i], b.offset[i]);
    const std::uint64_t end = std::min(a.offset[i] + a.extent[i], b.offset[i] + b.extent[i]);
    if (begin >= end) return std::nullopt;
    common.offset[i] = begin;
    common.extent[i] = end - begin;
  }
  return common;
}

bool inside(const Box& box, const Shape& shape) {
  if (box.offset.size() != shape.size() || box.extent.size() != shape.size()) return false;
  for (std::size_t i = 0; i < shape.size(); ++i) {
    if (!range_fits(box.offset[i], box.extent[i], shape[i])) return false;
  }
  return true;
}

std::string to_string(const Box& box) {
  std::string out = "[";
  for (std::size_t i = 0; i < box.offset.size(); ++i) {
    out += (i > 0 ? ", " : "") + std::to_string(box.offset[i]) + ":" + std::to_string(box.offset[i] + box.extent[i]);
  }
  return out + "]";
}

}  // namespace unshard
