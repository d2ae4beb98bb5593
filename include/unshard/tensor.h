// The words of tensors: element types, shapes, boxes. Plain values, trivially copyable where they cross ranks.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace unshard {

/// Element types of PyTorch and safetensors. A 4-bit pair type counts as one element of one byte, as in PyTorch.
enum class DType : std::uint8_t {
  f64, f32, f16, bf16, i64, i32, i16, i8, u8, boolean, u16, u32, u64,
  f8_e4m3, f8_e5m2, f8_e4m3fnuz, f8_e5m2fnuz, f8_e8m0, f4_x2,
  c32, c64, c128,
};

/// What is known of one element type. `safetensors` is empty where that format has no name for it.
struct DTypeInfo {
  DType dtype;
  std::string_view name;         ///< PyTorch's: "bfloat16"
  std::string_view safetensors;  ///< "BF16"
  std::uint8_t size_bytes;       ///< of one element
  std::uint8_t swap_bytes;       ///< unit in which a big-endian file is swapped (complex: the component)
  bool castable;                 ///< f64, f32, f16, bf16: the types --dtype converts
};

/// The one table of element types. Local.
[[nodiscard]] std::span<const DTypeInfo> dtype_table();
[[nodiscard]] const DTypeInfo& info(DType dtype);
[[nodiscard]] std::optional<DType> dtype_from_torch(std::string_view name);        ///< "bfloat16"
[[nodiscard]] std::optional<DType> dtype_from_safetensors(std::string_view name);  ///< "BF16"

/// Most dimensions that a tensor may have; real weights have up to five, stacked ones six.
inline constexpr std::size_t max_rank = 8;

/// A list of at most max_rank numbers: a shape, an offset, strides. Trivially copyable.
class Shape {
 public:
  Shape() = default;
  Shape(std::initializer_list<std::uint64_t> values);
  /// Throws Error(unsupported) for more than max_rank values.
  explicit Shape(std::span<const std::uint64_t> values);
  /// `rank` times `value`.
  [[nodiscard]] static Shape filled(std::size_t rank, std::uint64_t value);

  [[nodiscard]] std::size_t size() const { return rank_; }
  [[nodiscard]] bool empty() const { return rank_ == 0; }
  std::uint64_t& operator[](std::size_t i) { return values_[i]; }
  std::uint64_t operator[](std::size_t i) const { return values_[i]; }
  [[nodiscard]] const std::uint64_t* begin() const { return values_.data(); }
  [[nodiscard]] const std::uint64_t* end() const { return values_.data() + rank_; }
  void push_back(std::uint64_t value);
  friend bool operator==(const Shape& a, const Shape& b);

 private:
  std::array<std::uint64_t, max_rank> values_{};
  std::uint64_t rank_ = 0;
};

/// Number of elements (1 for shape []). Throws Error(bad_input) when the product exceeds 2^63 - 1.
[[nodiscard]] std::uint64_t volume(const Shape& shape);
/// Row-major strides in elements.
[[nodiscard]] Shape row_major_strides(const Shape& shape);
/// `[24, 16]`.
[[nodiscard]] std::string to_string(const Shape& shape);

/// The elements offset[i] <= x[i] < offset[i] + extent[i] of a tensor. Both lists have the tensor's rank.
struct Box {
  Shape offset;
  Shape extent;
  friend bool operator==(const Box&, const Box&) = default;
};
[[nodiscard]] Box whole(const Shape& shape);
/// The common part, or none when it is empty. Of two rank-0 boxes: the one element.
[[nodiscard]] std::optional<Box> intersect(const Box& a, const Box& b);
[[nodiscard]] bool inside(const Box& box, const Shape& shape);  ///< no overflow for any input
[[nodiscard]] std::string to_string(const Box& box);            ///< `[0:8, 16:32]`

}  // namespace unshard
