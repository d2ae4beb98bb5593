// From the entries of a `.metadata` to what the files of a checkpoint hold. Packed between ranks: one of them reads the `.metadata`.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "formats/dcp_metadata.h"
#include "unshard/comm.h"
#include "unshard/source.h"

namespace unshard {

/// Which entries are the weights of a model.
struct EntryKinds {
  std::vector<std::string> reasons;   ///< by entry: why it is left alone; "": it is a weight
  std::vector<std::string> sections;  ///< Source::sections
};

/// Local, pure. By the paths of the entries; objects are none.
[[nodiscard]] EntryKinds kinds_by_path(const std::vector<DcpEntry>& entries);

/// Local, pure. Weights by file, everything else by name.
[[nodiscard]] Bytes pack_dcp_index(const std::vector<DcpEntry>& entries, const EntryKinds& kinds, const std::string& label);

/// Local, pure. Completes `source`: the files that weights lie in, with their contents; missing ones are findings. `packed` of all index
/// files.
void apply_dcp_index(const Tree& tree, std::span<const Bytes> packed, Source& source);

/// One piece of a weight in a file.
struct DcpPiece {
  std::uint32_t tensor = 0;  ///< position in Source::tensors
  Box box;
  std::uint64_t position = 0, size_bytes = 0;
};

/// Local, pure. What ShardFile::contents says, in order of position.
[[nodiscard]] std::vector<DcpPiece> unpack_contents(const Source& source, const ShardFile& file);

}  // namespace unshard
