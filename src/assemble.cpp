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

/// What one chunk gives to one part of a target; none if they don't meet. `first` is the target's element at byte `at` of the range.
std::optional<Copy> copy_of_chunk(const Part& part, const Chunk& chunk, const Target& target, DType stored, std::uint64_t first,
                                  std::uint64_t at) {
  Copy copy;
  copy.slice = {chunk.file, stored, target.dtype, chunk.big_endian, chunk.position, {}, {}};
  std::array<Steps, max_rank> steps{};
  for (std::size_t d = 0; d < chunk.box.offset.size(); ++d) {
    steps[d] = steps_in(part, d, chunk);
    if (steps[d].lo >= steps[d].hi) return std::nullopt;
    const std::uint64_t index = part.source_box.offset[d] + steps[d].lo * part.source_step[d] - chunk.box.offset[d];
    copy.slice.position += index * chunk.strides[d] * info(stored).size_bytes;
  }
  const Shape row_major = row_major_strides(target.shape);
  std::vector<CopyDim> dims;
  std::uint64_t element = 0;
  for (std::size_t d = 0; d < target.shape.size(); ++d) {
    element += part.target_box.offset[d] * row_major[d];
    const int source = part.source_dim[d];
    if (source < 0) continue;
    element += steps[source].lo * part.target_step[d] * row_major[d];
    dims.push_back(
        {steps[source].hi - steps[source].lo, part.source_step[source] * chunk.strides[source], part.target_step[d] * row_major[d]});
  }
  copy.target = at + (element - first) * info(target.dtype).size_bytes;
  set_dims(dims, copy);
  return copy;
}

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
    : tensors_(tensors), targets_(targets), plan_(plan), chunks_(chunks.chunks, tensors.size()) {}

void Assembler::add_elements(const Target& target, std::uint64_t first, std::uint64_t end, std::uint64_t at,
                             std::vector<Copy>& copies) const {
  std::uint64_t found = 0;
  for (const Box& box : boxes_of_range(target.shape, first, end)) {
    for_each_part(target, box, [&](const Part& part) {
      for (const Chunk& chunk : chunks_.near(part)) {
        if (auto copy = copy_of_chunk(part, chunk, target, tensors_[part.source].dtype, first, at)) {
          found += volume(copy->slice.extent);
          copies.push_back(*copy);
        }
      }
    });
  }
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
    add_elements(target, from / size, from / size + 1, placed.position + from - range_begin, copies);
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
  if (from < whole) add_elements(target, from / size, whole / size, placed.position + from - range_begin, copies);
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

namespace {

/// How long the read is, in bytes, by which the average byte comes: a few short reads beside long ones don't matter.
double typical_read(const std::vector<Copy>& copies, std::uint64_t scratch_bytes) {
  double bytes = 0, weighted = 0;
  for (const Copy& copy : copies) {
    const Reads reads = reads_of(copy.slice, scratch_bytes);
    const auto all = static_cast<double>(reads.bytes);
    bytes += all;
    weighted += all * (all / static_cast<double>(reads.count));
  }
  return bytes == 0 ? 0 : weighted / bytes;
}

}  // namespace

OutputPiece next_piece(const Assembler& assembler, std::uint32_t file, std::uint64_t begin, std::uint64_t end, const PieceSizes& sizes) {
  constexpr double long_read = 65536;
  const auto piece_of = [&](std::uint64_t bytes) {
    const std::uint64_t limit = begin + bytes - (begin + bytes) % std::min(bytes, sizes.usual_bytes);
    const std::uint64_t piece_end = std::min(end, limit);
    return OutputPiece{file, begin, piece_end, assembler.copies(file, begin, piece_end)};
  };
  std::uint64_t bytes = std::min(sizes.usual_bytes, sizes.most_bytes);
  OutputPiece piece = piece_of(bytes);
  double read = typical_read(piece.copies, sizes.scratch_bytes);
  while (read < long_read && piece.end < end && bytes * 2 <= sizes.most_bytes) {
    bytes *= 2;
    OutputPiece larger = piece_of(bytes);
    const double larger_read = typical_read(larger.copies, sizes.scratch_bytes);
    if (larger_read < read * 1.5) break;
    piece = std::move(larger);
    read = larger_read;
  }
  return piece;
}

}  // namespace unshard
