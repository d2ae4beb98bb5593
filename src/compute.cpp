#include "compute.h"

#include <algorithm>
#include <cstring>

#include "cast.h"
#include "unshard/arithmetic.h"

namespace unshard {
namespace {

/// Columns first .. end of one row.
struct Range {
  std::uint64_t first = 0, end = 0;
  [[nodiscard]] bool empty() const { return first >= end; }
};

Range intersection(Range a, Range b) {
  return {std::max(a.first, b.first), std::min(a.end, b.end)};
}

/// Makes one piece, tile by tile. A tile is at most block_rows × block_columns of the target's matrix.
class PieceComputer {
 public:
  PieceComputer(const Calculation& calculation, std::span<std::byte> output, std::span<std::byte> work, Tiles& tiles)
      : piece_(calculation),
        computation_(*calculation.target->computation),
        output_(output),
        work_(work),
        tiles_(tiles),
        columns_(matrix_of(calculation.target->shape).columns),
        box_(box_of(calculation.target->shape, calculation.first, calculation.end)),
        sums_in_work_(!calculation.in_place && calculation.stored == DType::f32) {
    tiles_.sum.resize(block_rows * block_columns);
    tiles_.cast.resize(block_columns * sizeof(double));
  }

  void run() {
    for (std::uint64_t column = box_.first_column; column < box_.end_column; column = next(column, box_.end_column, block_columns)) {
      cached_ = nullptr;
      for (std::uint64_t row = box_.first_row; row < box_.end_row; row = next(row, box_.end_row, block_rows))
        make_tile({row, next(row, box_.end_row, block_rows), column, next(column, box_.end_column, block_columns)});
    }
  }

 private:
  /// The end of the tile that begins at `at`: tiles end at multiples of `size`.
  static std::uint64_t next(std::uint64_t at, std::uint64_t end, std::uint64_t size) { return std::min(end, (at / size + 1) * size); }

  /// The columns of the tile that the piece has in this row.
  [[nodiscard]] Range columns_in(const MatrixBox& tile, std::uint64_t row) const {
    const std::uint64_t start = row * columns_;
    const Range of_piece{piece_.first > start ? piece_.first - start : 0, piece_.end - start};
    return intersection({tile.first_column, tile.end_column}, of_piece);
  }

  /// Where the piece's elements in these columns become sums: where they lie in the work area, if that holds them as floats.
  [[nodiscard]] std::span<float> sum_of(const MatrixBox& tile, std::uint64_t row, Range columns) {
    const std::uint64_t count = columns.end - columns.first;
    if (sums_in_work_) return {reinterpret_cast<float*>(work_.data()) + element_of(row, columns), count};
    return std::span(tiles_.sum).subspan((row - tile.first_row) * block_columns + columns.first - tile.first_column, count);
  }

  /// The number of the first of these elements, counted from the piece's first.
  [[nodiscard]] std::uint64_t element_of(std::uint64_t row, Range columns) const { return row * columns_ + columns.first - piece_.first; }

  void make_tile(const MatrixBox& tile) {
    for_each_row(tile, [&](std::uint64_t row, Range columns) {
      const std::span<float> sum = sum_of(tile, row, columns);
      load(row, columns, sum);
      if (computation_.constant != 0)
        for (float& value : sum) value += computation_.constant;
    });
    for (const PieceAddend& addend : piece_.addends) add(tile, addend);
    for_each_row(tile, [&](std::uint64_t row, Range columns) {
      const std::span<float> sum = sum_of(tile, row, columns);
      if (!computation_.row_factors.empty())
        for (float& value : sum) value *= computation_.row_factors[row];
      if (!computation_.column_factors.empty())
        for (std::size_t i = 0; i < sum.size(); ++i) sum[i] *= computation_.column_factors[columns.first + i];
      store(row, columns, sum);
    });
  }

  template <class Work>
  void for_each_row(const MatrixBox& tile, const Work& work) const {
    for (std::uint64_t row = tile.first_row; row < tile.end_row; ++row) {
      const Range columns = columns_in(tile, row);
      if (!columns.empty()) work(row, columns);
    }
  }

  void load(std::uint64_t row, Range columns, std::span<float> to) const {
    if (sums_in_work_) return;
    const std::uint64_t size = info(piece_.stored).size_bytes;
    const std::uint64_t at = element_of(row, columns) * size;
    const std::span<const std::byte> from = (piece_.in_place ? output_ : work_).subspan(at, to.size() * size);
    cast(from, piece_.stored, std::as_writable_bytes(to), DType::f32);
  }

  /// The piece may lack the first bytes of its first element and the last ones of its last.
  void store(std::uint64_t row, Range columns, std::span<const float> from) {
    const DType dtype = piece_.target->dtype;
    const std::uint64_t size = info(dtype).size_bytes, bytes = from.size() * size;
    const std::uint64_t at = element_of(row, columns) * size;  // of the first whole element
    const std::uint64_t skipped = at < piece_.skipped_bytes ? piece_.skipped_bytes - at : 0;
    const std::uint64_t place = at + skipped - piece_.skipped_bytes;
    if (skipped == 0 && bytes <= output_.size() - place) return cast(std::as_bytes(from), DType::f32, output_.subspan(place, bytes), dtype);
    const std::span<std::byte> cast_bytes = std::span(tiles_.cast).first(bytes);
    cast(std::as_bytes(from), DType::f32, cast_bytes, dtype);
    std::memcpy(output_.data() + place, cast_bytes.data() + skipped, std::min<std::uint64_t>(bytes - skipped, output_.size() - place));
  }

  /// Rows first_row .. of a stored matrix and columns first_column .., cast into `height` × `width` numbers, zeros beyond its end.
  void take(const Operand& operand, std::uint64_t first_row, std::uint64_t first_column, std::uint64_t height, std::uint64_t width,
            std::vector<float>& to) const {
    to.assign(height * width, 0.0F);
    const std::uint64_t size = info(operand.dtype).size_bytes;
    const std::uint64_t rows = std::min(height, operand.rows - first_row), columns = std::min(width, operand.columns - first_column);
    for (std::uint64_t row = 0; row < rows; ++row) {
      const std::uint64_t at = operand.at + ((first_row + row) * operand.columns + first_column) * size;
      cast(work_.subspan(at, columns * size), operand.dtype, std::as_writable_bytes(std::span(to).subspan(row * width, columns)),
           DType::f32);
    }
  }

  /// Adds an addend to a tile, block by block of the addend.
  void add(const MatrixBox& tile, const PieceAddend& addend) {
    const Addend& of = *addend.addend;
    const Range rows = intersection({tile.first_row, tile.end_row}, {of.first_row, of.first_row + of.left.rows});
    const Range columns = intersection({tile.first_column, tile.end_column}, {of.first_column, of.first_column + of.columns()});
    if (rows.empty() || columns.empty()) return;
    for (std::uint64_t column = columns.first - of.first_column; column < columns.end - of.first_column;
         column = next(column, columns.end - of.first_column, block_columns)) {
      for (std::uint64_t row = rows.first - of.first_row; row < rows.end - of.first_row;
           row = next(row, rows.end - of.first_row, block_rows)) {
        const std::uint64_t block_row = row - row % block_rows, block_column = column - column % block_columns;
        make_block(addend, block_row, block_column);
        const Range block_of_rows{block_row + of.first_row, block_row + of.first_row + block_rows};
        const Range block_of_columns{block_column + of.first_column, block_column + of.first_column + block_columns};
        add_block(tile, intersection(rows, block_of_rows), intersection(columns, block_of_columns), block_of_rows.first,
                  block_of_columns.first, static_cast<float>(of.scale));
      }
    }
  }

  /// The block of the addend that begins at this row and column of it into tiles_.product.
  void make_block(const PieceAddend& addend, std::uint64_t row, std::uint64_t column) {
    if (!addend.right)
      return take(addend.left, row - addend.first_row, column - addend.first_column, block_rows, block_columns, tiles_.product);
    const std::uint64_t inner = addend.left.columns;
    take(addend.left, row - addend.first_row, 0, block_rows, inner, tiles_.left);
    if (cached_ != &addend || cached_column_ != column) {
      take(*addend.right, 0, column - addend.first_column, inner, block_columns, tiles_.right);
      cached_ = &addend;
      cached_column_ = column;
    }
    tiles_.product.resize(block_rows * block_columns);
    arithmetic().multiply(tiles_.left, tiles_.right, block_rows, inner, tiles_.product);
  }

  /// What is scaled is rounded before it is added, as PEFT does: this file is compiled without contraction into multiply-adds.
  void add_block(const MatrixBox& tile, Range rows, Range columns, std::uint64_t block_row, std::uint64_t block_column, float scale) {
    for_each_row({rows.first, rows.end, columns.first, columns.end}, [&](std::uint64_t row, Range of_row) {
      const std::span<float> sum = sum_of(tile, row, of_row);
      const float* product = tiles_.product.data() + (row - block_row) * block_columns + of_row.first - block_column;
      for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += scale * product[i];
    });
  }

  const Calculation& piece_;
  const Computation& computation_;
  std::span<std::byte> output_;
  std::span<std::byte> work_;
  Tiles& tiles_;
  std::uint64_t columns_;
  MatrixBox box_;
  bool sums_in_work_;
  const PieceAddend* cached_ = nullptr;  ///< whose right block tiles_.right holds
  std::uint64_t cached_column_ = 0;
};

std::uint64_t inner_of(const Addend& addend) {
  return addend.right ? addend.left.columns : 0;
}

}  // namespace

std::uint64_t tile_bytes(const Computation& computation) {
  std::uint64_t inner = 0;
  for (const Addend& addend : computation.addends) inner = std::max(inner, inner_of(addend));
  return (2 * block_rows * block_columns + inner * (block_rows + block_columns)) * sizeof(float) + block_columns * sizeof(double);
}

std::uint64_t least_work_bytes(const Target& target) {
  // The shortest piece is a block of columns in one row, which meets up to two blocks of an addend in each direction. Addends of other
  // rows (experts of a stack) may be met by it too, where it begins in one and ends in the next.
  std::uint64_t bytes = block_columns * sizeof(double);
  const std::vector<Addend>& addends = target.computation->addends;
  for (const Addend& addend : addends) {
    const std::uint64_t rows = std::min(2 * block_rows, addend.left.rows), columns = std::min(2 * block_columns, addend.columns());
    const std::uint64_t same_place = static_cast<std::uint64_t>(std::count_if(addends.begin(), addends.end(), [&](const Addend& other) {
      return other.first_row == addend.first_row && other.first_column == addend.first_column;
    }));
    const std::uint64_t elements = addend.right ? addend.left.columns * (rows + columns) : rows * columns;
    bytes = std::max(bytes, block_columns * sizeof(double) + 2 * same_place * elements * sizeof(float));
  }
  return bytes;
}

MatrixBox box_of(const Shape& shape, std::uint64_t first, std::uint64_t end) {
  const std::uint64_t columns = matrix_of(shape).columns;
  const std::uint64_t first_row = first / columns, last_row = (end - 1) / columns;
  if (first_row != last_row) return {first_row, last_row + 1, 0, columns};
  return {first_row, last_row + 1, first - first_row * columns, end - last_row * columns};
}

void compute(const Calculation& calculation, std::span<std::byte> output, std::span<std::byte> work, Tiles& tiles) {
  PieceComputer(calculation, output, work, tiles).run();
}

}  // namespace unshard
