// From a byte range of an output file to the stored bytes that it is made of.
//
// A range meets targets; the range of a target is a few boxes; a box is made of parts (targets.h); a part meets chunks. What a chunk gives
// to a part is a *slice*: a grid of elements of one shard. A *copy* says in addition where the elements of its slice go in the range. A
// slice is read (fetch.h) as *dense* bytes: its elements one after the other, in the order of the file where that is possible, already in
// the target's type. So the dense bytes of all copies of a range are as many as the range's own, and that is also what readers send to
// owners (exchange.h).
//
// Where a target is computed (Computation), its pieces hold nothing else. Their copies bring the elements as they are stored, and the
// factors of what is added, into a work area beside the output; compute.h makes the piece of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "compute.h"
#include "unshard/catalog.h"
#include "unshard/move.h"
#include "unshard/plan.h"
#include "unshard/targets.h"

namespace unshard {

/// Elements of one shard: element i of the grid `extent` lies at position + (i·stride) * size of `from`. Trivially copyable. Neighbouring
/// dimensions that are contiguous are one, and strides fall, so that the elements are in file order; only those with stride 0 (data that
/// repeats) are outermost.
struct Slice {
  FileId file = 0;
  DType from = DType::f32;  ///< as stored
  DType to = DType::f32;    ///< of the target
  bool big_endian = false;
  std::uint64_t position = 0;
  Shape extent;
  Shape stride;  ///< in elements
};

/// Local, pure. Bytes of the slice's elements in the target's type.
[[nodiscard]] std::uint64_t dense_bytes(const Slice& slice);

/// Where the elements of a slice go in an output range, or in the work area of a piece.
struct Copy {
  Slice slice;
  std::uint64_t target = 0;  ///< byte of the range (the area) where the first element goes
  Shape target_stride;       ///< in elements, for each dimension of the slice
  // A range that begins or ends inside an element takes only some of its bytes; the slice is then that one element.
  std::uint8_t skipped_bytes = 0;
  std::uint8_t taken_bytes = 0;  ///< 0: whole elements
  bool to_work = false;          ///< into the work area
};

/// Local, pure. Whether the dense bytes lie in the range as they are, so that they can be read straight into it.
[[nodiscard]] bool is_dense(const Copy& copy);

/// Local. Puts the dense bytes of the copy's slice where they belong in the output range.
void place(const Copy& copy, std::span<const std::byte> dense, std::span<std::byte> output);

/// Local, pure. The elements first <= i < end of a tensor in row-major order, as boxes in that order: at most 2 * rank - 1.
[[nodiscard]] std::vector<Box> boxes_of_range(const Shape& shape, std::uint64_t first, std::uint64_t end);

/// Finds the chunks of a tensor that can meet a part. Refers to records that are sorted by tensor, then box offset.
class ChunkIndex {
 public:
  ChunkIndex(std::span<const Chunk> chunks, std::size_t tensor_count);
  [[nodiscard]] std::span<const Chunk> of(TensorId tensor) const;
  [[nodiscard]] std::span<const Chunk> near(const Part& part) const;

 private:
  std::span<const Chunk> chunks_;
  std::vector<std::uint64_t> first_;   ///< of each tensor, and one past the last
  std::vector<std::uint64_t> widest_;  ///< of each tensor, the largest extent of a chunk in dimension 0: how far back a chunk can begin
};

/// A range of an output file that one thread makes and writes at once.
struct OutputPiece {
  std::uint32_t file = 0;
  std::uint64_t begin = 0, end = 0;
  std::vector<Copy> copies;
  Calculation calculation;  ///< of a piece of a computed target

  /// Elements first <= i < end of a computed target that are read and computed before the next ones, so that they stay in the cache.
  struct Block {
    std::uint64_t first = 0, end = 0;
    std::size_t end_copy = 0;  ///< its copies end there; they follow those of the block before
  };
  std::vector<Block> blocks;  ///< all bring their elements to the same place; factors' copies come last. One: all at once
};

struct PieceSizes {
  std::uint64_t usual_bytes = 0;  ///< pieces end at multiples of this
  std::uint64_t most_bytes = 0;
  std::uint64_t scratch_bytes = 0;  ///< of fetch()
  std::uint64_t work_bytes = 0;     ///< most for the work area of a piece
  std::uint64_t block_bytes = 0;    ///< of stored elements: about so many are computed at once (OutputPiece::Block); 0: all of a piece
};

/// Expands ranges. Thread-safe. Keeps references: what it is made from must outlive it.
class Assembler {
 public:
  Assembler(const std::vector<TensorRow>& tensors, const Targets& targets, const Plan& plan, const ChunkTable& chunks);

  /// Local, pure. The copies that make the bytes [begin, end) of output file `file`; bytes between targets are in none of them. Throws
  /// Error(internal) naming the target when chunks are missing. No part of a computed target is in the range.
  [[nodiscard]] std::vector<Copy> copies(std::uint32_t file, std::uint64_t begin, std::uint64_t end) const;

  /// Local, pure. The piece [begin, end), which is a part of the computed target `placed`.
  [[nodiscard]] OutputPiece computed_piece(const PlacedTarget& placed, std::uint64_t begin, std::uint64_t end,
                                           std::uint64_t block_bytes) const;

  /// Local, pure. The first computed target that has bytes in [begin, end) of the file; null when there is none.
  [[nodiscard]] const PlacedTarget* next_computed(std::uint32_t file, std::uint64_t begin, std::uint64_t end) const;

  [[nodiscard]] const Target& target_of(const PlacedTarget& placed) const { return targets_.targets[placed.target]; }

 private:
  struct Place;
  void add_target(const PlacedTarget& placed, std::uint64_t begin, std::uint64_t end, std::uint64_t range_begin,
                  std::vector<Copy>& copies) const;
  void add_elements(const Target& target, DType as, std::uint64_t first, std::uint64_t end, std::uint64_t at,
                    std::vector<Copy>& copies) const;
  void add_stored(std::uint64_t block_bytes, OutputPiece& piece) const;
  void add_addends(OutputPiece& piece) const;
  [[nodiscard]] Operand add_factor(const Factor& factor, const Box& box, OutputPiece& piece) const;
  [[nodiscard]] std::uint64_t add_box(const Shape& shape, const std::vector<Term>& terms, const Box& box, const Place& place,
                                      std::vector<Copy>& copies) const;

  const std::vector<TensorRow>& tensors_;
  const Targets& targets_;
  const Plan& plan_;
  ChunkIndex chunks_;
  bool has_computed_ = false;
};

/// Local, pure. The piece at the start of [begin, end): the usual size, or up to the largest one while that makes reads longer that are
/// shorter than 64 KiB (tensors cut by columns, transposed ones). Of a computed target: whole blocks of rows where they fit, as many as
/// make the reading of factors small beside that of the target itself. Throws Error(usage) when a work area is too small for any piece.
[[nodiscard]] OutputPiece next_piece(const Assembler& assembler, std::uint32_t file, std::uint64_t begin, std::uint64_t end,
                                     const PieceSizes& sizes);

}  // namespace unshard
