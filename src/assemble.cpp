#include "assemble.h"

#include <algorithm>
#include <cstring>
#include <optional>

#include "fetch.h"
#include "strided.h"
#include "unshard/error.h"

namespace unshard {
namespace {

/// A dimension of a copy.
struct CopyDim {
  std::uint64_t extent = 1, source_stride = 0, target_stride = 0;
};

/// Brings the dimensions into file order and joins those that are contiguous on both sides.
void set_dims(std::vector<CopyDim>& dims, Copy& copy) {
  std::erase_if(dims, [](const CopyDim& d) { return d.extent == 1; });
  std::stable_sort(dims.begin(), dims.end(), [](const CopyDim& a, const CopyDim& b) {
    return a.source_stride == 0 || b.source_stride == 0 ? a.source_stride == 0 && b.source_stride != 0 : a.source_stride > b.source_stride;
  });
  std::vector<CopyDim> joined;
  for (const CopyDim& inner : dims) {
    if (!joined.empty() && joined.back().source_stride == inner.source_stride * inner.extent &&
        joined.back().target_stride == inner.target_stride * inner.extent)
      joined.back() = {joined.back().extent * inner.extent, inner.source_stride, inner.target_stride};
    else
      joined.push_back(inner);
  }
  for (const CopyDim& d : joined) {
    copy.slice.extent.push_back(d.extent);
    copy.slice.stride.push_back(d.source_stride);
    copy.target_stride.push_back(d.target_stride);
  }
}

/// The steps lo <= i < hi of one source dimension of a part whose index (offset + i * step) lies in the chunk.
struct Steps {
  std::uint64_t lo = 0, hi = 0;
};

Steps steps_in(const Part& part, std::size_t dim, const Chunk& chunk) {
  const std::uint64_t offset = part.source_box.offset[dim], step = std::max<std::uint64_t>(part.source_step[dim], 1);
  const std::uint64_t begin = chunk.box.offset[dim], end = begin + chunk.box.extent[dim];
  const auto first_at = [&](std::uint64_t index) { return index <= offset ? 0 : (index - offset + step - 1) / step; };
  return {first_at(begin), std::min(part.source_box.extent[dim], first_at(end))};
}

/// How many elements of a computed target are made at once: all rows of some blocks of products (compute.h).
std::uint64_t block_elements(const Shape& shape, std::uint64_t element_bytes, std::uint64_t block_bytes) {
  const std::uint64_t least = block_rows * matrix_of(shape).columns;
  return std::max<std::uint64_t>(1, block_bytes / (least * element_bytes)) * least;
}

}  // namespace

/// Where elements of a tensor go: element i at byte `at` + (i·strides - first) * size of `as`.
struct Assembler::Place {
  DType as = DType::f32;
  Shape strides;
  std::uint64_t first = 0, at = 0;
  bool to_work = false;

  /// What one chunk gives to one part; none if they don't meet.
  [[nodiscard]] std::optional<Copy> copy(const Part& part, const Chunk& chunk, DType stored) const;
};

std::optional<Copy> Assembler::Place::copy(const Part& part, const Chunk& chunk, DType stored) const {
  Copy copy;
  copy.to_work = to_work;
  copy.slice = {chunk.file, stored, as, chunk.big_endian, chunk.position, {}, {}};
  std::array<Steps, max_rank> steps{};
  for (std::size_t d = 0; d < chunk.box.offset.size(); ++d) {
    steps[d] = steps_in(part, d, chunk);
    if (steps[d].lo >= steps[d].hi) return std::nullopt;
    const std::uint64_t index = part.source_box.offset[d] + steps[d].lo * part.source_step[d] - chunk.box.offset[d];
    copy.slice.position += index * chunk.strides[d] * info(stored).size_bytes;
  }
  std::vector<CopyDim> dims;
  std::uint64_t element = 0;
  for (std::size_t d = 0; d < strides.size(); ++d) {
    element += part.target_box.offset[d] * strides[d];
    const int source = part.source_dim[d];
    if (source < 0) continue;
    element += steps[source].lo * part.target_step[d] * strides[d];
    dims.push_back(
        {steps[source].hi - steps[source].lo, part.source_step[source] * chunk.strides[source], part.target_step[d] * strides[d]});
  }
  copy.target = at + (element - first) * info(as).size_bytes;
  set_dims(dims, copy);
  return copy;
}

namespace {

void add_boxes(const Shape& shape, std::size_t dim, Box box, std::uint64_t first, std::uint64_t end, std::vector<Box>& boxes) {
  const Shape strides = row_major_strides(shape);
  if (dim == shape.size()) {
    boxes.push_back(box);
    return;
  }
  const std::uint64_t row = strides[dim];
  const std::uint64_t begin_row = first / row, end_row = end / row;
  const auto add = [&](std::uint64_t offset, std::uint64_t extent, std::uint64_t from, std::uint64_t to) {
    box.offset[dim] = offset;
    box.extent[dim] = extent;
    add_boxes(shape, dim + 1, box, from, to, boxes);
  };
  if (begin_row == end_row) return add(begin_row, 1, first % row, end % row);
  std::uint64_t whole_rows = begin_row;
  if (first % row != 0) add(whole_rows++, 1, first % row, row);
  if (whole_rows < end_row) {
    box.offset[dim] = whole_rows;
    box.extent[dim] = end_row - whole_rows;
    for (std::size_t d = dim + 1; d < shape.size(); ++d) box.extent[d] = shape[d];
    for (std::size_t d = dim + 1; d < shape.size(); ++d) box.offset[d] = 0;
    boxes.push_back(box);
  }
  if (end % row != 0) add(end_row, 1, 0, end % row);
}

}  // namespace

std::uint64_t dense_bytes(const Slice& slice) {
  return volume(slice.extent) * info(slice.to).size_bytes;
}

bool is_dense(const Copy& copy) {
  return copy.taken_bytes == 0 && copy.target_stride == row_major_strides(copy.slice.extent);
}

void place(const Copy& copy, std::span<const std::byte> dense, std::span<std::byte> output) {
  if (copy.taken_bytes != 0)
    std::memcpy(output.data() + copy.target, dense.data() + copy.skipped_bytes, copy.taken_bytes);
  else
    copy_strided(output.data() + copy.target, copy.target_stride, dense.data(), row_major_strides(copy.slice.extent), copy.slice.extent,
                 info(copy.slice.to).size_bytes);
}

std::vector<Box> boxes_of_range(const Shape& shape, std::uint64_t first, std::uint64_t end) {
  std::vector<Box> boxes;
  if (first >= end) return boxes;
  const Box empty{Shape::filled(shape.size(), 0), Shape::filled(shape.size(), 0)};
  add_boxes(shape, 0, empty, first, end, boxes);
  return boxes;
}

ChunkIndex::ChunkIndex(std::span<const Chunk> chunks, std::size_t tensor_count)
    : chunks_(chunks), first_(tensor_count + 1, 0), widest_(tensor_count, 0) {
  for (const Chunk& chunk : chunks) {
    ++first_[chunk.tensor + 1];
    if (!chunk.box.extent.empty()) widest_[chunk.tensor] = std::max(widest_[chunk.tensor], chunk.box.extent[0]);
  }
  for (std::size_t t = 0; t < tensor_count; ++t) first_[t + 1] += first_[t];
}

std::span<const Chunk> ChunkIndex::of(TensorId tensor) const {
  return chunks_.subspan(first_[tensor], first_[tensor + 1] - first_[tensor]);
}

std::span<const Chunk> ChunkIndex::near(const Part& part) const {
  const std::span<const Chunk> all = of(part.source);
  if (part.source_box.offset.empty() || all.empty()) return all;
  const std::uint64_t begin = part.source_box.offset[0];
  const std::uint64_t last = begin + (part.source_box.extent[0] - 1) * part.source_step[0];
  const std::uint64_t widest = widest_[part.source];
  const auto starts_before = [](const Chunk& chunk, std::uint64_t index) { return chunk.box.offset[0] < index; };
  const auto first = std::lower_bound(all.begin(), all.end(), begin < widest ? 0 : begin - widest + 1, starts_before);
  const auto end = std::lower_bound(first, all.end(), last + 1, starts_before);
  return all.subspan(static_cast<std::size_t>(first - all.begin()), static_cast<std::size_t>(end - first));
}

Assembler::Assembler(const std::vector<TensorRow>& tensors, const Targets& targets, const Plan& plan, const ChunkTable& chunks)
    : tensors_(tensors), targets_(targets), plan_(plan), chunks_(chunks.chunks, tensors.size()) {
  has_computed_ = std::any_of(targets.targets.begin(), targets.targets.end(), [](const Target& target) { return target.computation; });
}

/// Returns how many elements were found.
std::uint64_t Assembler::add_box(const Shape& shape, const std::vector<Term>& terms, const Box& box, const Place& place,
                                 std::vector<Copy>& copies) const {
  std::uint64_t found = 0;
  for_each_part(shape, terms, box, [&](const Part& part) {
    for (const Chunk& chunk : chunks_.near(part)) {
      if (auto copy = place.copy(part, chunk, tensors_[part.source].dtype)) {
        found += volume(copy->slice.extent);
        copies.push_back(*copy);
      }
    }
  });
  return found;
}

void Assembler::add_elements(const Target& target, DType as, std::uint64_t first, std::uint64_t end, std::uint64_t at,
                             std::vector<Copy>& copies) const {
  std::uint64_t found = 0;
  const Place place{as, row_major_strides(target.shape), first, at};
  for (const Box& box : boxes_of_range(target.shape, first, end)) found += add_box(target.shape, target.terms, box, place, copies);
  if (found != end - first) {
    throw Error(ErrorCode::internal, printable(target.name) + ": of the elements " + std::to_string(first) + " to " + std::to_string(end) +
                                         " " + std::to_string(found) + " are in the chunks at hand, expected " +
                                         std::to_string(end - first));
  }
}

void Assembler::add_target(const PlacedTarget& placed, std::uint64_t begin, std::uint64_t end, std::uint64_t range_begin,
                           std::vector<Copy>& copies) const {
  const Target& target = targets_.targets[placed.target];
  const std::uint64_t size = info(target.dtype).size_bytes;
  const auto add_partial = [&](std::uint64_t from, std::uint64_t to) {  // bytes of the target, inside one element
    add_elements(target, target.dtype, from / size, from / size + 1, placed.position + from - range_begin, copies);
    copies.back().skipped_bytes = static_cast<std::uint8_t>(from % size);
    copies.back().taken_bytes = static_cast<std::uint8_t>(to - from);
  };
  std::uint64_t from = begin - placed.position;
  const std::uint64_t to = end - placed.position;
  if (from % size != 0) {
    const std::uint64_t element_end = std::min(to, (from / size + 1) * size);
    add_partial(from, element_end);
    from = element_end;
  }
  const std::uint64_t whole = to - to % size;
  if (from < whole) add_elements(target, target.dtype, from / size, whole / size, placed.position + from - range_begin, copies);
  if (std::max(from, whole) < to) add_partial(std::max(from, whole), to);
}

std::vector<Copy> Assembler::copies(std::uint32_t file, std::uint64_t begin, std::uint64_t end) const {
  std::vector<Copy> copies;
  const auto [first, last] = placed_in(plan_, file, begin, end);
  for (std::size_t i = first; i < last; ++i) {
    const PlacedTarget& placed = plan_.layout.placed[i];
    const std::uint64_t from = std::max(begin, placed.position), to = std::min(end, placed.position + placed.size_bytes);
    if (from < to) add_target(placed, from, to, begin, copies);
  }
  return copies;
}

const PlacedTarget* Assembler::next_computed(std::uint32_t file, std::uint64_t begin, std::uint64_t end) const {
  if (!has_computed_) return nullptr;
  const auto [first, last] = placed_in(plan_, file, begin, end);
  for (std::size_t i = first; i < last; ++i) {
    const PlacedTarget& placed = plan_.layout.placed[i];
    if (target_of(placed).computation && std::max(begin, placed.position) < std::min(end, placed.position + placed.size_bytes))
      return &placed;
  }
  return nullptr;
}

OutputPiece Assembler::computed_piece(const PlacedTarget& placed, std::uint64_t begin, std::uint64_t end, std::uint64_t block_bytes) const {
  OutputPiece piece{placed.file, begin, end, {}, {}, {}};
  Calculation& calculation = piece.calculation;
  calculation.target = &target_of(placed);
  const std::uint64_t size = info(calculation.target->dtype).size_bytes;
  const std::uint64_t from = begin - placed.position, to = end - placed.position;
  calculation.first = from / size;
  calculation.end = (to + size - 1) / size;
  calculation.skipped_bytes = from % size;
  add_stored(block_bytes, piece);
  add_addends(piece);
  return piece;
}

/// The target's own elements: where all of them are stored in its type, in the piece; else in the work area, block after block in the same
/// place.
void Assembler::add_stored(std::uint64_t block_bytes, OutputPiece& piece) const {
  Calculation& calculation = piece.calculation;
  const Target& target = *calculation.target;
  calculation.stored = tensors_[target.terms.front().source].dtype;
  for (const Term& term : target.terms)
    if (tensors_[term.source].dtype != calculation.stored) calculation.stored = DType::f32;
  const std::uint64_t size = info(calculation.stored).size_bytes, length = calculation.end - calculation.first;
  const bool is_whole = length * info(target.dtype).size_bytes == piece.end - piece.begin;
  calculation.in_place = is_whole && calculation.stored == target.dtype;
  const std::uint64_t block = block_bytes > 0 ? block_elements(target.shape, size, block_bytes) : calculation.end;
  for (std::uint64_t first = calculation.first; first < calculation.end;) {
    const std::uint64_t end = std::min(calculation.end, (first / block + 1) * block);
    const std::uint64_t at = calculation.in_place ? (first - calculation.first) * size : 0;
    add_elements(target, calculation.stored, first, end, at, piece.copies);
    piece.blocks.push_back({first, end, piece.copies.size()});
    if (!calculation.in_place) calculation.work_bytes = std::max(calculation.work_bytes, (end - first) * size);
    first = end;
  }
  if (calculation.in_place) return;
  for (Copy& copy : piece.copies) copy.to_work = true;
}

void Assembler::add_addends(OutputPiece& piece) const {
  Calculation& calculation = piece.calculation;
  const MatrixBox box = box_of(calculation.target->shape, calculation.first, calculation.end);
  for (const Addend& addend : calculation.target->computation->addends) {
    // From the start of a block to the end of what is needed, in the addend's own rows and columns.
    const auto range = [](std::uint64_t begin, std::uint64_t end, std::uint64_t start, std::uint64_t count, std::uint64_t block) {
      const std::uint64_t first = begin > start ? (begin - start) / block * block : 0;
      const std::uint64_t last = end > start ? std::min(count, (end - start + block - 1) / block * block) : 0;
      return std::pair{first, last};
    };
    const auto [row, row_end] = range(box.first_row, box.end_row, addend.first_row, addend.left.rows, block_rows);
    const auto [column, column_end] = range(box.first_column, box.end_column, addend.first_column, addend.columns(), block_columns);
    if (row >= row_end || column >= column_end) continue;
    PieceAddend needed{&addend, row, column, {}, {}};
    if (addend.right) {
      needed.left = add_factor(addend.left, {{row, 0}, {row_end - row, addend.left.columns}}, piece);
      needed.right = add_factor(*addend.right, {{0, column}, {addend.right->rows, column_end - column}}, piece);
    } else {
      needed.left = add_factor(addend.left, {{row, column}, {row_end - row, column_end - column}}, piece);
    }
    calculation.addends.push_back(std::move(needed));
  }
}

Operand Assembler::add_factor(const Factor& factor, const Box& box, OutputPiece& piece) const {
  Operand operand{tensors_[factor.term.source].dtype, piece.calculation.work_bytes, box.extent[0], box.extent[1]};
  const Place place{operand.dtype, {box.extent[1], 1}, box.offset[0] * box.extent[1] + box.offset[1], operand.at, true};
  const std::uint64_t found = add_box({factor.rows, factor.columns}, {factor.term}, box, place, piece.copies);
  if (found != operand.rows * operand.columns) {
    throw Error(ErrorCode::internal, printable(tensors_[factor.term.source].name) + ": of " +
                                         std::to_string(operand.rows * operand.columns) + " elements " + std::to_string(found) +
                                         " are in the chunks at hand");
  }
  piece.calculation.work_bytes += operand.bytes();
  return operand;
}

}  // namespace unshard
