// Arithmetic on tensors, done by LibTorch in a library of its own (unshard_arithmetic) that is loaded only when something must be computed.
// No type of LibTorch appears here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "unshard/tensor.h"

namespace unshard {

/// How two equally shaped lists of elements differ. Positions count elements from the start of the lists. An element that is two numbers
/// (complex, a 4-bit pair) counts as two in `count` and `pairs`, once in positions.
struct Difference {
  std::uint64_t count = 0;           ///< elements with |a-b| > atol + rtol*|b|, or NaN or infinity on one side only
  double max_abs = 0;                ///< of those (NaN against a number counts as infinity)
  double max_rel = 0;                ///< |a-b| / |b|
  std::uint64_t worst_position = 0;  ///< of max_abs
  double worst_a = 0, worst_b = 0;
  // Sums over all finite pairs, to be added over pieces: cosine = dot / sqrt(square_a * square_b), RMS = sqrt(square_difference / pairs).
  double dot = 0, square_a = 0, square_b = 0, square_difference = 0;
  std::uint64_t pairs = 0;
};

/// Local. Adds what was found in a piece that begins at `position` of the whole. The same sums for the same pieces in the same order.
void add(Difference& whole, const Difference& piece, std::uint64_t position);

struct Tolerance {
  double atol = 1e-5;
  double rtol = 1e-5;
};

/// left · right approximates a matrix: left is rows × rank, right rank × columns; each has a square root of the singular values.
struct LowRank {
  std::vector<float> left, right;
  double square_norm = 0;  ///< of the matrix: the sum of its squared elements
  double captured = 0;     ///< of left · right: the sum of the squared singular values that were kept
};

class Arithmetic {
 public:
  /// compare() goes through longer lists in slices of so many elements, and takes at most so much memory for them.
  static constexpr std::uint64_t slice_elements = std::uint64_t{1} << 13;
  static constexpr std::uint64_t working_bytes = std::uint64_t{1280} << 10;

  virtual ~Arithmetic() = default;
  /// Local. Compares `a` (elements of `a_dtype`) with `b`; both little-endian and contiguous, of one length. `like_dtype`: a is first cast
  /// to b's type, where both are floating. Throws Error(unsupported) for a cast that this LibTorch lacks, and for complex elements against
  /// others.
  [[nodiscard]] virtual Difference compare(std::span<const std::byte> a, DType a_dtype, std::span<const std::byte> b, DType b_dtype,
                                           Tolerance tolerance, bool like_dtype) const = 0;
  /// Local. Thread-safe. product = left · right, where left has `rows` rows of `inner` numbers, right `inner` rows, and both follow one
  /// another without gaps. The last bit may depend on `rows` and on the columns: the caller takes the same ones whatever his buffers
  /// (unshard/targets.h, Computation).
  virtual void multiply(std::span<const float> left, std::span<const float> right, std::uint64_t rows, std::uint64_t inner,
                        std::span<float> product) const = 0;
  /// Local. The best approximation of rank `rank` (at most the smaller of rows and columns) of a matrix: exact for small ones, by random
  /// projection (always the same) for large ones. `read` fills whole rows from `first_row` on, and is asked for the same rows several
  /// times. Needs memory for about (rows + columns) * 3 * rank numbers, and for small matrices for a few copies.
  [[nodiscard]] virtual LowRank approximate(std::uint64_t rows, std::uint64_t columns, std::uint64_t rank,
                                            const std::function<void(std::uint64_t first_row, std::span<float> block)>& read) const = 0;
  /// Local. The version of LibTorch.
  [[nodiscard]] virtual const char* version() const = 0;
};

/// Local. Loads the library (beside the program, or where it was installed) on the first call. Throws Error(internal) naming the path when
/// it can't.
[[nodiscard]] const Arithmetic& arithmetic();

}  // namespace unshard
