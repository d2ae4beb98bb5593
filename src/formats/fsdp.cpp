// Rank files of FSDP as verl writes them (verl/utils/checkpoint/fsdp_checkpoint_manager.py): one torch.save dictionary for each rank.
// A value is a DTensor (FSDP2, and FSDP1 with a device mesh: see placement.h), a ShardedTensor (FSDP1 without one: every piece states its
// own offsets), or a plain tensor that the rank holds whole. FSDP1's LOCAL_STATE_DICT holds flat parameters, 1-D and of no use without a
// list that is not in the file.
#include "formats/fsdp.h"

#include <algorithm>

#include "formats/fsdp_files.h"
#include "formats/placement.h"
#include "formats/torch_file.h"
#include "formats/torch_pieces.h"

namespace unshard {
namespace {

Piece plain_piece(const TorchEntry& entry) {
  Piece piece = whole_piece(entry);
  for (Chunk& chunk : piece.chunks) chunk.plain = true;
  return piece;
}

Piece dtensor_piece(const TorchEntry& entry) {
  const StoredDTensor& tensor = *entry.dtensor;
  Piece piece{entry.path, tensor.local.dtype, tensor.global_shape, {}};
  if (volume(piece.shape) == 0) return piece;
  const std::uint64_t size_bytes = info(tensor.local.dtype).size_bytes;
  for (const PlacedPiece& placed : place(tensor)) {
    Chunk chunk = chunk_of(tensor.local);
    chunk.box = placed.box;
    // Inside the record: torch_file.h has checked every element of the local tensor.
    for (std::size_t d = 0; d < placed.local_offset.size(); ++d)
      chunk.position += placed.local_offset[d] * tensor.local.strides[d] * size_bytes;
    piece.chunks.push_back(chunk);
  }
  return piece;
}

Piece sharded_piece(const TorchEntry& entry, const Source& source) {
  const StoredShardedTensor& tensor = *entry.sharded;
  if (tensor.world_size != 0 && tensor.world_size != source.world_size) {
    throw Error(ErrorCode::bad_input, "it was saved by " + std::to_string(tensor.world_size) + " ranks, the file's name says " +
                                          std::to_string(source.world_size));
  }
  Piece piece{entry.path, tensor.dtype, tensor.global_shape, {}};
  for (const auto& shard : tensor.shards) {
    const Box box{shard.offset, shard.extent};
    if (shard.tensor.shape != shard.extent || shard.tensor.dtype != tensor.dtype || !inside(box, tensor.global_shape)) {
      throw Error(ErrorCode::bad_input, "its piece of shape " + to_string(shard.tensor.shape) + " does not fit " + to_string(box) + " of " +
                                            to_string(tensor.global_shape));
    }
    if (volume(shard.extent) == 0) continue;
    piece.chunks.push_back(chunk_of(shard.tensor));
    piece.chunks.back().box = box;
  }
  return piece;
}

bool is_flat_parameter(const TorchEntry& entry) {
  const std::string& key = entry.keys.empty() ? entry.path : entry.keys.back();
  const std::string_view name = key;
  return name == "_flat_param" || name == "flat_param" || name.ends_with("._flat_param") || name.ends_with(".flat_param");
}

/// FSDP1's LOCAL_STATE_DICT: with use_orig_params its other entries are 1-D slices under the parameters' names, so none of the file is
/// used.
std::optional<Finding> flat_parameters(const TorchContents& contents) {
  std::vector<std::string> names;
  for (const TorchEntry& entry : contents.entries) {
    if (is_flat_parameter(entry)) names.push_back(entry.path);
  }
  if (names.empty()) return std::nullopt;
  return Finding{Severity::error, names.front(),
                 "is a flat parameter" + (names.size() > 1 ? " (as are " + std::to_string(names.size() - 1) + " more)" : std::string{}) +
                     ": LOCAL_STATE_DICT joins all parameters of a module end to end, and the list of their names and shapes that would "
                     "take them apart is not in "
                     "the file; save with SHARDED_STATE_DICT or FULL_STATE_DICT",
                 ErrorCode::unsupported};
}

Piece piece_of(const TorchEntry& entry, const Source& source) {
  switch (entry.kind) {
    case TorchEntry::Kind::tensor:
      return plain_piece(entry);
    case TorchEntry::Kind::dtensor:
      return dtensor_piece(entry);
    case TorchEntry::Kind::sharded_tensor:
      return sharded_piece(entry, source);
  }
  throw Error(ErrorCode::internal, "an entry of unknown kind");
}

class FsdpFormat final : public CheckpointFormat {
 public:
  [[nodiscard]] std::string_view name() const override { return "fsdp"; }
  [[nodiscard]] std::string_view description() const override { return "FSDP rank files (model_world_size_<W>_rank_<R>.pt)"; }

  [[nodiscard]] bool recognises(const Tree& tree, const std::string& folder) const override {
    const auto names = tree.children(folder);
    return std::any_of(names.begin(), names.end(), is_fsdp_rank_file);
  }

  [[nodiscard]] Source describe(const Tree& tree, const std::vector<std::string>& folders) const override {
    return describe_fsdp_files(tree, folders);
  }

  [[nodiscard]] ShardContents read_headers(const Source& source, FileId file, File& open_file) const override {
    const std::string& label = source.files.at(file).label;
    return pieces_of_rank_file(source, read_torch_file(open_file, label, source.files[file].rank));
  }
};

}  // namespace

ShardContents pieces_of_rank_file(const Source& source, TorchContents contents) {
  ShardContents shard;
  shard.objects = std::move(contents.objects);
  if (auto flat = flat_parameters(contents)) {
    shard.findings.push_back(std::move(*flat));
    return shard;
  }
  shard.pieces.reserve(contents.entries.size());
  for (const TorchEntry& entry : contents.entries) {
    try {
      shard.pieces.push_back(piece_of(entry, source));
    } catch (const Error& error) {
      shard.findings.push_back({Severity::error, entry.path, error.what(), error.code()});
    }
  }
  for (const auto& [path, reason] : contents.unreadable) shard.findings.push_back({Severity::error, path, reason, ErrorCode::bad_input});
  return shard;
}

const CheckpointFormat& fsdp_format() {
  static const FsdpFormat format;
  return format;
}

}  // namespace unshard
