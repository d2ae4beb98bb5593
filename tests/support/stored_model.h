// Checkpoints made by hand: tensors of known values, cut into boxes, stored with any strides in files of a memory disk; and what must come
// out, computed element by element from the definition of a term.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "unshard/catalog.h"
#include "unshard/plan.h"
#include "unshard/source.h"
#include "unshard/targets.h"

namespace unshard::test {

/// The element of `dtype` that has this value: a small whole number (0 to 250), which all floating types hold exactly; other types take its
/// bits.
[[nodiscard]] std::string element_of(std::uint64_t number, DType dtype);

/// How a box is stored.
struct StorageOrder {
  std::vector<std::size_t> order;      ///< dimensions, outermost first; empty: row-major
  std::vector<std::uint64_t> padding;  ///< elements of junk behind each index of the dimension, outermost first; empty: none
  bool big_endian = false;
};

class StoredModel {
 public:
  /// `files` names the shards, which every node sees.
  explicit StoredModel(const std::vector<std::string>& files);

  /// A tensor whose elements are whole numbers that depend on its number and their place.
  TensorId add(DType dtype, const Shape& shape);

  /// Stores `box` of the tensor at the end of `file`, behind some junk.
  void store(TensorId tensor, const Box& box, FileId file, const StorageOrder& how = {});

  [[nodiscard]] std::uint64_t number_at(TensorId tensor, std::uint64_t element) const {
    return (tensor * 71 + element * 13 + element / 7) % 251;
  }

  /// The target's bytes, by the definition of its terms.
  [[nodiscard]] std::string expected(const Target& target) const;

  /// The chunks of the tensors t with t % ranks == rank, sorted.
  [[nodiscard]] Catalog catalog_of(int rank, int ranks) const;

  Source source;
  std::vector<TensorRow> tensors;
  std::vector<std::string> contents;  ///< of the files
  std::vector<Chunk> chunks;
};

/// Targets one after the other in files of at most `file_bytes`, each file with a header of `header_bytes`; `gap_bytes` between targets.
[[nodiscard]] Layout lay_out_for_test(const Targets& targets, std::uint64_t file_bytes, std::uint64_t header_bytes,
                                      std::uint64_t gap_bytes);

/// The complete content of the layout's files.
[[nodiscard]] std::vector<std::string> expected_files(const StoredModel& model, const Targets& targets, const Layout& layout);

}  // namespace unshard::test
