// One rank's file copied over another's: its shapes fit, its headers are in order, and the model would be wrong without a word. Two files
// with the same data for different parts of the same tensors are such twins. With the same data for other tensors they may be right: tied
// weights, buffers. Not so in Megatron's files of single ranks, which hold all of a stage's layers or experts; those that began as copies
// of others (an upcycled model) differ after one step of training.
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
  std::uint64_t names = 0;  ///< a hash of the names of its tensors
  std::uint64_t boxes = 0;  ///< and of the parts of them that it has
  std::uint64_t largest_position = 0, largest_bytes = 0, element_bytes = 1;  ///< its largest record
};

/// Local, pure. None for a file without data, or with a record that has no checksum.
[[nodiscard]] std::optional<FilePrint> print_of(FileId file, std::span<const Piece> pieces);

struct Twins {
  std::vector<Finding> copies;    ///< errors: data that is there for other parts
  std::vector<Finding> replicas;  ///< errors if parts are missing: data that is there for the same parts
};

/// Collective. `mine`: of the files whose headers this rank has read. The same on every rank; `among_tensors`: `copies` has those with data
/// for other tensors too. Reads a little of files that may be such: where all elements are alike (zeros, as at the start of a training),
/// they are not.
[[nodiscard]] Twins find_twins(Comm& comm, FileCache& files, const Source& source, const std::vector<FilePrint>& mine, bool among_tensors);

}  // namespace unshard
