// One side of a comparison: the bytes of its targets, laid one after the other like a file, made from wherever their chunks lie.
#pragma once

#include <cstdint>
#include <vector>

#include "assemble.h"
#include "compare.h"
#include "fetch.h"
#include "unshard/move.h"
#include "unshard/plan.h"

namespace unshard {

struct ByteRange {
  std::uint64_t begin = 0, end = 0;
};

class ComparedSide {
 public:
  /// Collective. `targets` and what `side` refers to must outlive this; `ranges` by rank: what each of them will read.
  ComparedSide(Comm& comm, const Side& side, const Targets& targets, const std::vector<ByteRange>& ranges);

  /// Local. The position of a target's first byte.
  [[nodiscard]] std::uint64_t start_of(std::uint32_t target) const { return plan_.layout.placed[target].position; }
  /// Local. Whether every node sees every file, so that each rank can read for itself.
  [[nodiscard]] bool everywhere() const { return everywhere_; }
  /// Local, thread-safe. Makes the bytes of a range. `work` has its scratch; its dense bytes grow to as many as the range's.
  void read(ByteRange range, std::vector<std::byte>& bytes, Buffers& work) const;
  /// Collective. The same, where a range may be empty on some ranks and files are read by ranks that see them. Beside `bytes` and `work`
  /// it takes as many bytes as the range has, and on a rank that reads for others as many as their ranges have together.
  void read_together(Comm& comm, ByteRange range, std::vector<std::byte>& bytes, Buffers& work) const;

 private:
  const Side& side_;
  Plan plan_;
  ChunkTable chunks_;
  Assembler assembler_;
  bool everywhere_ = true;
};

}  // namespace unshard
