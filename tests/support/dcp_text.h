// A `.metadata` of torch.distributed.checkpoint put together by hand. Any number may be a lie.
#pragma once

#include <string>
#include <vector>

#include "support/pickle_text.h"

namespace unshard::testing::pickled {

inline std::string torch_size(const std::vector<std::int64_t>& values) {
  return call(global("torch", "Size"), {numbers(values)});
}

inline std::string dcp_class(const std::string& name) {
  return global(name == "_StorageInfo" ? "torch.distributed.checkpoint.filesystem" : "torch.distributed.checkpoint.metadata", name);
}

struct DcpChunk {
  std::vector<std::int64_t> offset, size;
};

/// A float32 tensor.
inline std::string dcp_tensor(const std::vector<std::int64_t>& size, const std::vector<DcpChunk>& chunks) {
  std::vector<std::string> list_of_chunks;
  for (const DcpChunk& chunk : chunks)
    list_of_chunks.push_back(
        object(dcp_class("ChunkStorageMetadata"), dict({{"offsets", torch_size(chunk.offset)}, {"sizes", torch_size(chunk.size)}})));
  const std::string properties = object(dcp_class("TensorProperties"), tuple({global("torch", "float32"), none, no, none, no}));
  return object(dcp_class("TensorStorageMetadata"),
                dict({{"properties", properties}, {"size", torch_size(size)}, {"chunks", list(list_of_chunks)}}));
}

inline std::string dcp_bytes() {
  return dcp_class("BytesStorageMetadata") + ")\x81";
}

/// One pair of storage_data.
inline std::string dcp_place(const std::string& name, const std::string& offset, const std::string& file, std::int64_t position,
                             std::int64_t size_bytes, const std::string& transforms = none) {
  return object(dcp_class("MetadataIndex"), dict({{"fqn", text(name)}, {"index", none}, {"offset", offset}})) +
         object(dcp_class("_StorageInfo"), dict({{"relative_path", text(file)},
                                                 {"offset", number(position)},
                                                 {"length", number(size_bytes)},
                                                 {"transform_descriptors", transforms}}));
}

/// `places`: pairs of dcp_place.
inline std::string dcp_metadata(const std::vector<std::pair<std::string, std::string>>& entries, const std::vector<std::string>& places,
                                const std::string& planner_data = none) {
  return whole(object(
      dcp_class("Metadata"),
      dict({{"state_dict_metadata", dict(entries)}, {"planner_data", planner_data}, {"storage_data", "}(" + joined(places) + "u"}})));
}

}  // namespace unshard::testing::pickled
