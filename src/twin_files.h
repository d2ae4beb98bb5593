// One rank's file copied over another's: its shapes fit, its headers are in order, and the model would be wrong without a word. Two files
// of different places whose data has the same checksums are such twins, since no two parts of trained tensors are the same.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "unshard/catalog.h"

namespace unshard {

/// What tells the file of one rank from that of another. Trivially copyable.
struct FilePrint {
  FileId file = 0;
  std::uint64_t data = 0;   ///< a hash of where its records lie in it and of their checksums
  std::uint64_t place = 0;  ///< a hash of the tensors and boxes that they are for
  std::uint64_t largest_position = 0, largest_bytes = 0, element_bytes = 1;  ///< its largest record
};

/// Local, pure. None for a file without data, or with a record that has no checksum.
[[nodiscard]] std::optional<FilePrint> print_of(FileId file, std::span<const Piece> pieces);

/// Collective. `mine`: of the files whose headers this rank has read. An error for each twin, the same on every rank. Reads a little of
/// files that may be twins: where all elements are alike (zeros, as at the start of a training), they are none.
[[nodiscard]] std::vector<Finding> find_twins(Comm& comm, FileCache& files, const Source& source, const std::vector<FilePrint>& mine);

}  // namespace unshard
