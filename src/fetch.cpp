#include "fetch.h"

#include <algorithm>

#include "cast.h"
#include "strided.h"

namespace unshard {
namespace {

// A gap that is this small or a tenth of what is wanted is read as well: a call costs more than the copying of such a gap.
constexpr std::uint64_t small_gap_bytes = 256;
// From this length on a contiguous run is read by a call of its own, straight to where it belongs.
constexpr std::uint64_t long_run_bytes = 4096;

/// The dimensions of a slice as they are read: contiguous neighbours are one. The order of the elements stays.
struct Grid {
  Shape extent, stride;

  explicit Grid(const Slice& slice) {
    for (std::size_t d = 0; d < slice.extent.size(); ++d) {
      const std::size_t n = extent.size();
      if (n > 0 && stride[n - 1] == slice.extent[d] * slice.stride[d] && slice.stride[d] != 0) {
        extent[n - 1] *= slice.extent[d];
        stride[n - 1] = slice.stride[d];
      } else {
        extent.push_back(slice.extent[d]);
        stride.push_back(slice.stride[d]);
      }
    }
    if (!extent.empty()) return;
    extent.push_back(1);
    stride.push_back(1);
  }
};

/// Whether a gap of so many elements behind `span` others is read as well.
bool is_small_gap(std::uint64_t gap, std::uint64_t span, std::uint64_t element_bytes) {
  return gap <= span / 10 || gap * element_bytes <= small_gap_bytes;
}

/// What one read takes: the dimensions from `first` on, and `block` indices of the one before.
struct ReadGroup {
  std::size_t first = 0;
  std::uint64_t block = 1;
  std::uint64_t span = 1;   ///< elements of the file that the dimensions from `first` on cover, gaps included
  std::uint64_t count = 1;  ///< elements of the slice in them
};

bool needs_work(const Slice& slice) {
  return slice.from != slice.to || (slice.big_endian && info(slice.from).swap_bytes > 1);
}

ReadGroup group_of(const Slice& slice, const Grid& grid, std::uint64_t scratch_bytes) {
  const std::uint64_t size = info(slice.from).size_bytes, limit = std::max<std::uint64_t>(scratch_bytes / 2 / size, 1);
  const std::size_t rank = grid.extent.size();
  ReadGroup group{rank, 1, 1, 1};
  const bool repeats = grid.stride[0] == 0;  // a run that is wanted several times is read into the scratch once
  if (!needs_work(slice) && !repeats && grid.stride[rank - 1] == 1 && grid.extent[rank - 1] * size >= long_run_bytes)
    return {rank - 1, 1, grid.extent[rank - 1], grid.extent[rank - 1]};
  while (group.first > 0) {
    const std::uint64_t stride = grid.stride[group.first - 1], extent = grid.extent[group.first - 1];
    const std::uint64_t gap = stride > group.span ? stride - group.span : 0;
    if (!is_small_gap(gap, group.span, size)) break;
    const std::uint64_t fit_span = stride == 0 ? extent : (limit - group.span) / stride + 1;
    // What is cast waits in the scratch a second time, gathered.
    const std::uint64_t fit_count = slice.from == slice.to ? extent : std::max<std::uint64_t>(limit / group.count, 1);
    const std::uint64_t fit = std::min({extent, fit_span, fit_count});
    if (fit < extent) {
      group.block = fit;
      break;
    }
    group.span += (extent - 1) * stride;
    group.count *= extent;
    --group.first;
  }
  return group;
}

/// Calls `read(position in elements, indices of the blocked dimension)` for every read of the slice, in order.
template <class Read>
void for_each_read(const Grid& grid, const ReadGroup& group, std::size_t dim, std::uint64_t position, const Read& read) {
  if (group.first == 0) return read(position, std::uint64_t{1});
  const bool blocked = dim == group.first - 1;
  for (std::uint64_t i = 0; i < grid.extent[dim]; i += blocked ? group.block : 1) {
    if (blocked)
      read(position + i * grid.stride[dim], std::min(group.block, grid.extent[dim] - i));
    else
      for_each_read(grid, group, dim + 1, position + i * grid.stride[dim], read);
  }
}

class Fetcher {
 public:
  Fetcher(File& file, const Slice& slice, std::span<std::byte> scratch)
      : file_(file), slice_(slice), scratch_(scratch), grid_(slice), group_(group_of(slice, grid_, scratch.size())) {}

  void run(std::span<std::byte> dense) {
    for_each_read(grid_, group_, 0, 0, [&](std::uint64_t position, std::uint64_t indices) {
      const std::uint64_t bytes = indices * group_.count * info(slice_.to).size_bytes;
      read(position, indices, dense.first(bytes));
      dense = dense.subspan(bytes);
    });
  }

 private:
  void read(std::uint64_t position, std::uint64_t indices, std::span<std::byte> dense) {
    const std::uint64_t size = info(slice_.from).size_bytes;
    const std::uint64_t span = group_.span + (group_.first > 0 ? (indices - 1) * grid_.stride[group_.first - 1] : 0);
    const std::uint64_t at = slice_.position + position * size;
    if (is_run(indices) && !needs_work(slice_)) return file_.read_at(at, dense);
    const std::span<std::byte> raw = scratch_.first(span * size);
    file_.read_at(at, raw);
    if (is_run(indices)) return finish(raw, dense);
    const std::uint64_t count = indices * group_.count;
    const std::span<std::byte> gathered = slice_.from == slice_.to ? dense : scratch_.subspan(scratch_.size() / 2, count * size);
    gather(raw, indices, gathered);
    if (slice_.from != slice_.to)
      finish(gathered, dense);
    else if (slice_.big_endian)
      swap_bytes(dense, info(slice_.from).swap_bytes);
  }

  /// Whether a read takes one contiguous run in order.
  [[nodiscard]] bool is_run(std::uint64_t indices) const {
    const std::size_t whole = grid_.extent.size() - group_.first;
    if (whole == 0) return indices == 1 || grid_.stride[group_.first - 1] == 1;
    return whole == 1 && indices == 1 && (grid_.stride[group_.first] == 1 || grid_.extent[group_.first] == 1);
  }

  void gather(std::span<const std::byte> raw, std::uint64_t indices, std::span<std::byte> to) const {
    Shape extent, stride;
    if (group_.first > 0) {
      extent.push_back(indices);
      stride.push_back(grid_.stride[group_.first - 1]);
    }
    for (std::size_t d = group_.first; d < grid_.extent.size(); ++d) {
      extent.push_back(grid_.extent[d]);
      stride.push_back(grid_.stride[d]);
    }
    copy_strided(to.data(), row_major_strides(extent), raw.data(), stride, extent, info(slice_.from).size_bytes);
  }

  void finish(std::span<std::byte> raw, std::span<std::byte> dense) const {
    if (slice_.big_endian) swap_bytes(raw, info(slice_.from).swap_bytes);
    cast(raw, slice_.from, dense, slice_.to);
  }

  File& file_;
  const Slice& slice_;
  std::span<std::byte> scratch_;
  Grid grid_;
  ReadGroup group_;
};

/// What is computed for one block of a piece.
Calculation part_of(const Calculation& whole, const OutputPiece::Block& block) {
  Calculation part = whole;
  part.first = block.first;
  part.end = block.end;
  if (block.first != whole.first) part.skipped_bytes = 0;
  return part;
}

/// Where the block's elements go in the piece's output.
std::span<std::byte> output_of(const Calculation& whole, const OutputPiece::Block& block, std::span<std::byte> output) {
  const std::uint64_t size = info(whole.target->dtype).size_bytes;
  const auto place = [&](std::uint64_t element) {  // the piece may lack the first bytes of its first element and the last ones of its last
    const std::uint64_t at = (element - whole.first) * size;
    return std::min<std::uint64_t>(at - std::min(at, whole.skipped_bytes), output.size());
  };
  return output.subspan(place(block.first), place(block.end) - place(block.first));
}

}  // namespace

Reads reads_of(const Slice& slice, std::uint64_t scratch_bytes) {
  const Grid grid(slice);
  const ReadGroup group = group_of(slice, grid, scratch_bytes);
  Reads reads{1, group.span};
  if (group.first > 0) {
    const std::size_t blocked = group.first - 1;
    const std::uint64_t blocks = (grid.extent[blocked] + group.block - 1) / group.block;
    // Gaps within a block are read, those between blocks aren't.
    reads = {blocks, blocks * group.span + (grid.extent[blocked] - blocks) * grid.stride[blocked]};
    for (std::size_t d = 0; d < blocked; ++d) reads = {reads.count * grid.extent[d], reads.bytes * grid.extent[d]};
  }
  reads.bytes *= info(slice.from).size_bytes;
  return reads;
}

bool reads_only_elements(const Copy& copy) {
  const Slice& slice = copy.slice;
  const std::size_t rank = slice.extent.size();
  if (copy.taken_bytes != 0 || rank > 2) return false;
  if (rank == 0) return true;
  if (slice.stride[rank - 1] != 1 || copy.target_stride[rank - 1] != 1) return false;
  if (rank == 1) return true;
  // Rows of contiguous elements: a part of them is some whole rows and two parts of rows.
  const std::uint64_t columns = slice.extent[1];
  if (slice.stride[0] < columns || copy.target_stride[0] < columns) return false;
  return slice.stride[0] == columns || !is_small_gap(slice.stride[0] - columns, columns, info(slice.from).size_bytes);
}

void fetch(File& file, const Slice& slice, std::span<std::byte> dense, std::span<std::byte> scratch) {
  Fetcher(file, slice, scratch).run(dense);
}

void clear_gaps(std::span<const Copy> copies, std::span<std::byte> output) {
  std::uint64_t made = 0;
  for (const Copy& copy : copies) made += copy.taken_bytes != 0 ? copy.taken_bytes : dense_bytes(copy.slice);
  if (made < output.size()) std::fill(output.begin(), output.end(), std::byte{0});
}

Reads read_copy(FileCache& files, const Copy& copy, std::span<std::byte> to, Buffers& buffers) {
  const std::shared_ptr<File> file = files.get(copy.slice.file);
  const std::uint64_t bytes = dense_bytes(copy.slice);
  if (is_dense(copy)) {
    fetch(*file, copy.slice, to.subspan(copy.target, bytes), buffers.scratch);
  } else {
    if (buffers.dense.size() < bytes) buffers.dense.resize(bytes);
    const std::span<std::byte> dense = std::span(buffers.dense).first(bytes);
    fetch(*file, copy.slice, dense, buffers.scratch);
    place(copy, dense, to);
  }
  return reads_of(copy.slice, buffers.scratch.size());
}

Reads assemble(FileCache& files, std::span<const Copy> copies, std::span<std::byte> output, Buffers& buffers) {
  clear_gaps(copies, output);
  Reads all;
  for (const Copy& copy : copies) {
    const Reads reads = read_copy(files, copy, output, buffers);
    all.count += reads.count;
    all.bytes += reads.bytes;
  }
  return all;
}

Reads make_piece(FileCache& files, const OutputPiece& piece, std::span<std::byte> output, Buffers& buffers) {
  if (piece.calculation.target == nullptr) return assemble(files, piece.copies, output, buffers);
  if (buffers.work.size() < piece.calculation.work_bytes) buffers.work.resize(piece.calculation.work_bytes);
  Reads all;
  const auto read = [&](std::size_t first, std::size_t end) {
    for (const Copy& copy : std::span(piece.copies).subspan(first, end - first)) {
      const Reads reads = read_copy(files, copy, copy.to_work ? std::span<std::byte>(buffers.work) : output, buffers);
      all.count += reads.count;
      all.bytes += reads.bytes;
    }
  };
  std::size_t next = 0;
  read(piece.blocks.back().end_copy, piece.copies.size());
  for (const OutputPiece::Block& block : piece.blocks) {
    read(next, block.end_copy);
    next = block.end_copy;
    compute(part_of(piece.calculation, block), output_of(piece.calculation, block, output), buffers.work, buffers.tiles);
  }
  return all;
}

}  // namespace unshard
