// Whole targets, each on one rank, read piece by piece: for what is computed from a tensor instead of written as it is.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "assemble.h"
#include "fetch.h"
#include "unshard/file_cache.h"
#include "unshard/merge.h"

namespace unshard {

class TargetReader {
 public:
  /// Collective. `owners[i]`: the rank that reads target i. References are kept, but for the targets'.
  TargetReader(const Session& session, FileCache& files, const Catalog& catalog, Targets targets, const std::vector<int>& owners);

  /// Local. Bytes first .. first + to.size() of a target of this rank.
  void read(std::size_t target, std::uint64_t first, std::span<std::byte> to);

 private:
  FileCache& files_;
  Targets targets_;
  Plan plan_;
  ChunkTable chunks_;
  Assembler assembler_;
  Buffers buffers_;
  PieceSizes sizes_;
};

}  // namespace unshard
