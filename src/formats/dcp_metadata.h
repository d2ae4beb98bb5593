// The `.metadata` of torch.distributed.checkpoint (DCP): every tensor of the checkpoint, the boxes it was cut into, and the file and byte
// range of each. A pickle, read as data.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "unshard/file_system.h"
#include "unshard/source.h"
#include "unshard/tensor.h"

namespace unshard {

/// One stored box of a tensor, or one stored object.
struct DcpItem {
  Box box;                     ///< in the tensor; of an object: empty
  std::string file;            ///< relative to the folder of the .metadata: no absolute path, no `..`
  std::uint64_t position = 0;  ///< of the item's bytes in the file
  std::uint64_t size_bytes = 0;
  std::string transform;  ///< how the bytes were encoded ("stream.zstd/1"); "": not at all
};

/// One entry of the state dict: a tensor or an object.
struct DcpEntry {
  std::string name;               ///< the keys on its path, joined by dots
  std::vector<std::string> path;  ///< the same, apart; one element where the writer did not say
  bool is_tensor = false;
  DType dtype = DType::u8;
  Shape shape;
  std::vector<DcpItem> items;  ///< in the order of the metadata's list of chunks
  std::string problem;         ///< why it can't be read, or ""
};

/// Local. Throws Error(bad_input | unsupported) whose text starts with `label` for what is damaged, lies, or is no such pickle.
[[nodiscard]] std::vector<DcpEntry> read_dcp_metadata(File& file, const std::string& label);

}  // namespace unshard
