// Safetensors shards of DCP's HuggingFaceStorageWriter: `shard-00002-model-00001-of-00003.safetensors` holds what rank 2 (counted from 1)
// has of the first file of three. Every file says where its pieces begin; how large the whole tensors are follows from all files together.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "unshard/catalog.h"
#include "unshard/file_system.h"
#include "unshard/source.h"

namespace unshard {

[[nodiscard]] bool is_hf_storage_shard(std::string_view name);
[[nodiscard]] bool holds_hf_storage_shards(const Tree& tree, const std::string& folder);

/// Local, pure. The shards are files and index files at once.
[[nodiscard]] Source describe_hf_storage(const Tree& tree, const std::vector<std::string>& folders);

/// Local. The tensors of one shard, and how far they reach.
[[nodiscard]] Bytes pack_hf_storage_shard(File& file, const std::string& label);
/// Local, pure. The whole tensors, from all shards.
void apply_hf_storage(std::span<const Bytes> packed, Source& source);

/// Local. The pieces of one shard.
[[nodiscard]] ShardContents read_hf_storage_shard(const Source& source, FileId file, File& open_file);

}  // namespace unshard
