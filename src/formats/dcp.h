// The input format `dcp`, for the table of formats, and what other formats share with it.
#pragma once

#include <string>
#include <vector>

#include "unshard/checkpoint_format.h"

namespace unshard {

[[nodiscard]] const CheckpointFormat& dcp_format();

/// Local, pure. Whether `folder` holds data files or metadata of torch.distributed.checkpoint.
[[nodiscard]] bool holds_dcp_files(const Tree& tree, const std::string& folder);

/// Local, pure. Whether they are one of Megatron's distributed checkpoints (torch_dist.h), by what lies beside them.
[[nodiscard]] bool is_of_torch_dist(const Tree& tree, const std::string& folder);

/// Local, pure. The metadata files of the folders, and notes of data files without one. Index files are still to be read.
[[nodiscard]] Source describe_dcp_folders(const Tree& tree, const std::vector<std::string>& folders);

/// Local. The headers of the items of weights in a data file; the first file declares all tensors.
[[nodiscard]] ShardContents read_dcp_items(const Source& source, FileId file, File& open_file);

/// Local, pure. Says which data files no metadata names, and that there are no weights where there are none.
void note_dcp_leftovers(const Tree& tree, Source& source);

}  // namespace unshard
