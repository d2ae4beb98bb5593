// What is computed for a piece of an output file once the stored elements that it is made from are at hand.
//
// Products are made on blocks of block_rows × block_columns, counted from the first row and column of the addend, the last ones filled up
// with zeros: the last bit of a sum may depend on the sizes of a product, so these are always the same. A piece that begins or ends inside
// a block makes the whole block and takes what it needs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "unshard/targets.h"

namespace unshard {

inline constexpr std::uint64_t block_rows = 64;
inline constexpr std::uint64_t block_columns = 512;

/// A stored matrix in the work area of a piece: rows × columns elements of `dtype`, one after the other, from byte `at` on.
struct Operand {
  DType dtype = DType::f32;
  std::uint64_t at = 0, rows = 0, columns = 0;
  [[nodiscard]] std::uint64_t bytes() const { return rows * columns * info(dtype).size_bytes; }
};

/// An addend as far as a piece needs it. `left` begins at row `first_row` of the addend, `right` (or left, where there is no right) at
/// column `first_column`; both are multiples of the block's size.
struct PieceAddend {
  const Addend* addend = nullptr;
  std::uint64_t first_row = 0, first_column = 0;
  Operand left;
  std::optional<Operand> right;
};

/// The elements first <= i < end of a target, of which the first and the last may lie in the piece only partly.
struct Calculation {
  const Target* target = nullptr;  ///< null: nothing is computed
  std::uint64_t first = 0, end = 0;
  std::uint64_t skipped_bytes = 0;  ///< of the first element
  DType stored = DType::f32;        ///< what the target's terms give
  bool in_place = false;            ///< the stored elements lie in the piece itself; else at the start of the work area
  std::vector<PieceAddend> addends;
  std::uint64_t work_bytes = 0;
};

/// Memory of one thread for computing; grows to what was needed, at most tile_bytes of what is computed.
struct Tiles {
  std::vector<float> sum, left, right, product;
  std::vector<std::byte> cast;
};

/// Local, pure. Bytes of Tiles for this target.
[[nodiscard]] std::uint64_t tile_bytes(const Computation& computation);

/// Local, pure. The least work area with which any piece of the target can be made.
[[nodiscard]] std::uint64_t least_work_bytes(const Target& target);

/// Local, pure. The rows and columns of a target's matrix that the elements lie in (all columns, unless they are of one row).
struct MatrixBox {
  std::uint64_t first_row = 0, end_row = 0, first_column = 0, end_column = 0;
};
[[nodiscard]] MatrixBox box_of(const Shape& shape, std::uint64_t first, std::uint64_t end);

/// Local. Computes the piece into `output`. `work`, aligned for floats, is used up. Throws what Arithmetic throws.
void compute(const Calculation& calculation, std::span<std::byte> output, std::span<std::byte> work, Tiles& tiles);

}  // namespace unshard
