// Chunk records on their way to the home ranks of their tensors.
#pragma once

#include <cstdint>
#include <vector>

#include "chunk_wire.h"
#include "unshard/catalog.h"

namespace unshard {

/// Records of one tensor, packed.
class PackedRecords {
 public:
  void add(const Chunk& chunk) {
    write_chunk(out_, chunk);
    ++count_;
  }
  [[nodiscard]] std::uint64_t count() const { return count_; }
  [[nodiscard]] const Bytes& bytes() const { return out_.written(); }
  [[nodiscard]] Bytes take() { return out_.take(); }

 private:
  WireWriter out_;
  std::uint64_t count_ = 0;
};

/// Collective. `records[i]` are those that this rank has of tensor `ids[i]`; they are emptied. Those of tensors marked in `left_out` (by
/// id) stay behind. Returns the records of the tensors at home here, in the order of Catalog::chunks.
[[nodiscard]] std::vector<Chunk> send_home(Comm& comm, const std::vector<TensorRow>& tensors, std::vector<PackedRecords>& records,
                                           const std::vector<TensorId>& ids, const std::vector<bool>& left_out);

}  // namespace unshard
