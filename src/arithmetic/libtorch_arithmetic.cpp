// Arithmetic by LibTorch (1.13 and newer), on tensors that view our buffers. Built as a library of its own,
// found by dlopen, because loading LibTorch costs 0.2 s and 57 MB.
#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>
#include <torch/csrc/api/include/torch/version.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <string>

#include "low_rank.h"
#include "one_thread.h"
#include "small_floats.h"
#include "unshard/arithmetic.h"
#include "unshard/error.h"

#define UNSHARD_TORCH_AT_LEAST(major, minor) \
  (TORCH_VERSION_MAJOR > (major) || (TORCH_VERSION_MAJOR == (major) && TORCH_VERSION_MINOR >= (minor)))

namespace unshard {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();
// Of a slice about ten lists of doubles live at once, twice as many where an element is two numbers.
static_assert(Arithmetic::working_bytes >= 20 * sizeof(double) * Arithmetic::slice_elements);

bool is_complex(DType dtype) {
  return dtype == DType::c32 || dtype == DType::c64 || dtype == DType::c128;
}
std::uint64_t numbers_per_element(DType dtype) {
  return is_complex(dtype) || dtype == DType::f4_x2 ? 2 : 1;
}

/// Elements as numbers: doubles, and the exact integers where they are integers.
struct Numbers {
  at::Tensor value;
  at::Tensor exact;  ///< undefined for floating types
};

at::Tensor view(std::span<const std::byte> bytes, at::ScalarType type) {
  const auto count = static_cast<std::int64_t>(bytes.size() / c10::elementSize(type));
  // from_blob wants a pointer to write through; nothing here writes to a view.
  return at::from_blob(const_cast<std::byte*>(bytes.data()), {count}, at::TensorOptions().dtype(type));
}

template <std::size_t count>
at::Tensor looked_up(std::span<const std::byte> bytes, std::array<double, count> table) {
  const at::Tensor values =
      at::from_blob(table.data(), {256, static_cast<std::int64_t>(count / 256)}, at::TensorOptions().dtype(at::kDouble));
  return values.index_select(0, view(bytes, at::kByte).to(at::kLong)).flatten();
}

Numbers of_floats(const at::Tensor& stored) {
  return {stored.to(at::kDouble), {}};
}
Numbers of_integers(const at::Tensor& stored) {
  const at::Tensor exact = stored.to(at::kLong);
  return {exact.to(at::kDouble), exact};
}

Numbers of_u64(const at::Tensor& bits) {
  const at::Tensor value = bits.to(at::kDouble);
  return {at::where(bits.lt(0), value + 0x1p64, value), bits};
}

Numbers numbers_of(std::span<const std::byte> bytes, DType dtype) {
  switch (dtype) {
    case DType::f64:
    case DType::c128:
      return of_floats(view(bytes, at::kDouble));
    case DType::f32:
    case DType::c64:
      return of_floats(view(bytes, at::kFloat));
    case DType::f16:
    case DType::c32:
      return of_floats(view(bytes, at::kHalf));
    case DType::bf16:
      return of_floats(view(bytes, at::kBFloat16));
    case DType::i64:
      return of_integers(view(bytes, at::kLong));
    case DType::i32:
      return of_integers(view(bytes, at::kInt));
    case DType::i16:
      return of_integers(view(bytes, at::kShort));
    case DType::i8:
      return of_integers(view(bytes, at::kChar));
    case DType::u8:
    case DType::boolean:
      return of_integers(view(bytes, at::kByte));
    // Older releases have no unsigned types wider than a byte.
    case DType::u16:
      return of_integers(view(bytes, at::kShort).to(at::kLong).bitwise_and(std::int64_t{0xFFFF}));
    case DType::u32:
      return of_integers(view(bytes, at::kInt).to(at::kLong).bitwise_and(std::int64_t{0xFFFFFFFF}));
    case DType::u64:
      return of_u64(view(bytes, at::kLong));
    case DType::f8_e4m3:
      return {looked_up(bytes, table_of(e4m3fn)), {}};
    case DType::f8_e5m2:
      return {looked_up(bytes, table_of(e5m2)), {}};
    case DType::f8_e4m3fnuz:
      return {looked_up(bytes, table_of(e4m3fnuz)), {}};
    case DType::f8_e5m2fnuz:
      return {looked_up(bytes, table_of(e5m2fnuz)), {}};
    case DType::f8_e8m0:
      return {looked_up(bytes, e8m0_table()), {}};
    case DType::f4_x2:
      return {looked_up(bytes, e2m1_pair_table()), {}};
  }
  throw Error(ErrorCode::internal, "no arithmetic for an element type");
}

/// The type of LibTorch to which a floating tensor can be cast, if it is one and this version has it.
std::optional<at::ScalarType> cast_type(DType dtype) {
  switch (dtype) {
    case DType::f64:
      return at::kDouble;
    case DType::f32:
      return at::kFloat;
    case DType::f16:
      return at::kHalf;
    case DType::bf16:
      return at::kBFloat16;
#if UNSHARD_TORCH_AT_LEAST(2, 2)
    case DType::f8_e4m3:
      return at::ScalarType::Float8_e4m3fn;
    case DType::f8_e5m2:
      return at::ScalarType::Float8_e5m2;
    case DType::f8_e4m3fnuz:
      return at::ScalarType::Float8_e4m3fnuz;
    case DType::f8_e5m2fnuz:
      return at::ScalarType::Float8_e5m2fnuz;
#endif
    default:
      return std::nullopt;
  }
}

bool is_floating(DType dtype) {
  return info(dtype).castable || dtype == DType::f8_e4m3 || dtype == DType::f8_e5m2 || dtype == DType::f8_e4m3fnuz ||
         dtype == DType::f8_e5m2fnuz;
}

/// `bytes` rounded once to the type of the other side.
Numbers cast_numbers(std::span<const std::byte> bytes, DType from, DType to) {
  const auto type = cast_type(to);
  if (!type) {
    throw Error(ErrorCode::unsupported,
                "LibTorch " TORCH_VERSION " can't cast to " + std::string(info(to).name) + "; compare without --like-dtype");
  }
  const bool small = info(from).size_bytes == 1;
  const at::Tensor stored = small ? numbers_of(bytes, from).value : view(bytes, *cast_type(from));
  return of_floats(stored.to(*type));
}

/// |a - b|: 0 for NaN or the same infinity on both sides, infinite for NaN on one.
at::Tensor distance(const Numbers& a, const Numbers& b) {
  at::Tensor result = (a.value - b.value).abs_();
  const at::Tensor nan_a = at::isnan(a.value), nan_b = at::isnan(b.value);
  result.masked_fill_(a.value.eq(b.value).logical_or_(nan_a.logical_and(nan_b)), 0.0);
  result.masked_fill_(nan_a.logical_xor(nan_b), infinity);
  if (a.exact.defined() && b.exact.defined()) {  // two large integers may be one double
    result.masked_fill_(a.exact.ne(b.exact).logical_and_(result.eq(0.0)), 1.0);
  }
  return result;
}

void add_sums(Difference& found, const Numbers& a, const Numbers& b) {
  const at::Tensor finite = at::isfinite(a.value).logical_and_(at::isfinite(b.value));
  const at::Tensor left = a.value.masked_fill(finite.logical_not(), 0.0), right = b.value.masked_fill(finite.logical_not(), 0.0);
  const auto sum = [](const at::Tensor& of) { return of.sum().item<double>(); };
  found.dot = sum(left * right);
  found.square_a = sum(left * left);
  found.square_b = sum(right * right);
  const at::Tensor apart = left - right;
  found.square_difference = sum(apart * apart);
  found.pairs = static_cast<std::uint64_t>(finite.sum().item<std::int64_t>());
}

Difference compare_numbers(const Numbers& a, const Numbers& b, Tolerance tolerance) {
  Difference found;
  const at::Tensor apart = distance(a, b);
  const at::Tensor size_b = b.value.abs();
  // An infinite distance is a difference whatever the limit, which may be infinite or NaN itself.
  const at::Tensor beyond = apart.gt(size_b * tolerance.rtol + tolerance.atol).logical_or_(at::isinf(apart));
  found.count = static_cast<std::uint64_t>(beyond.sum().item<std::int64_t>());
  if (found.count > 0) {
    at::Tensor relative = apart / size_b;
    relative.masked_fill_(at::isnan(relative), infinity);
    found.max_rel = relative.masked_fill_(beyond.logical_not(), 0.0).max().item<double>();
    const at::Tensor of_beyond = apart.masked_fill(beyond.logical_not(), -1.0);
    const auto worst = of_beyond.argmax().item<std::int64_t>();
    found.max_abs = of_beyond[worst].item<double>();
    found.worst_position = static_cast<std::uint64_t>(worst);
    found.worst_a = a.value[worst].item<double>();
    found.worst_b = b.value[worst].item<double>();
  }
  add_sums(found, a, b);
  return found;
}

class LibTorchArithmetic final : public Arithmetic {
 public:
  LibTorchArithmetic() { compute_on_one_thread(); }

  [[nodiscard]] Difference compare(std::span<const std::byte> a, DType a_dtype, std::span<const std::byte> b, DType b_dtype,
                                   Tolerance tolerance, bool like_dtype) const override {
    if (numbers_per_element(a_dtype) != numbers_per_element(b_dtype)) {
      throw Error(ErrorCode::unsupported,
                  "elements of " + std::string(info(a_dtype).name) + " can't be compared with " + std::string(info(b_dtype).name));
    }
    const std::uint64_t a_size = info(a_dtype).size_bytes, b_size = info(b_dtype).size_bytes, count = a.size() / a_size;
    if (a.size() != count * a_size || b.size() != count * b_size)
      throw Error(ErrorCode::internal, "lists of different lengths are compared");
    const bool cast = like_dtype && a_dtype != b_dtype && is_floating(a_dtype) && is_floating(b_dtype);
    try {
      const c10::InferenceMode without_gradients;
      Difference found;
      for (std::uint64_t first = 0; first < count; first += slice_elements) {
        const std::uint64_t length = std::min(slice_elements, count - first);
        const auto of_a = a.subspan(first * a_size, length * a_size), of_b = b.subspan(first * b_size, length * b_size);
        Difference slice =
            compare_numbers(cast ? cast_numbers(of_a, a_dtype, b_dtype) : numbers_of(of_a, a_dtype), numbers_of(of_b, b_dtype), tolerance);
        slice.worst_position /= numbers_per_element(a_dtype);
        add(found, slice, first);
      }
      return found;
    } catch (const c10::Error& error) {
      throw Error(ErrorCode::internal, std::string("LibTorch: ") + printable(error.what_without_backtrace()));
    }
  }

  void multiply(std::span<const float> left, std::span<const float> right, std::uint64_t rows, std::uint64_t inner,
                std::span<float> product) const override {
    const std::uint64_t columns = rows == 0 ? 0 : product.size() / rows;
    if (left.size() != rows * inner || right.size() != inner * columns || product.size() != rows * columns)
      throw Error(ErrorCode::internal, "matrices of sizes that don't fit are multiplied");
    try {
      const c10::InferenceMode without_gradients;
      const auto matrix = [](std::span<const float> numbers, std::uint64_t height, std::uint64_t width) {
        return at::from_blob(const_cast<float*>(numbers.data()), {static_cast<std::int64_t>(height), static_cast<std::int64_t>(width)},
                             at::TensorOptions().dtype(at::kFloat));
      };
      at::Tensor result = matrix(product, rows, columns);
      at::mm_out(result, matrix(left, rows, inner), matrix(right, inner, columns));
    } catch (const c10::Error& error) {
      throw Error(ErrorCode::internal, std::string("LibTorch: ") + printable(error.what_without_backtrace()));
    }
  }

  [[nodiscard]] LowRank approximate(std::uint64_t rows, std::uint64_t columns, std::uint64_t rank,
                                    const std::function<void(std::uint64_t, std::span<float>)>& read) const override {
    return unshard::approximate(rows, columns, rank, read);
  }

  [[nodiscard]] const char* version() const override { return TORCH_VERSION; }
};

}  // namespace
}  // namespace unshard

/// What the loader (src/arithmetic.cpp) looks up.
extern "C" __attribute__((visibility("default"))) const unshard::Arithmetic* unshard_arithmetic_v3() {
  static const unshard::LibTorchArithmetic instance;
  return &instance;
}
