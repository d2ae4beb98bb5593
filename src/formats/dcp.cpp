// A checkpoint of torch.distributed.checkpoint (torch/distributed/checkpoint/filesystem.py):
//
//   .metadata          what lies where (dcp_metadata.h); written last, so without it a save did not finish. [2026] also __<rank>.metadata
//   __<R>_<N>.distcp   items back to back: each a whole torch.save archive of one plain tensor (a box of a weight) or of one object
//
// Only files that the metadata names count: an earlier save by more ranks leaves others behind. HuggingFaceStorageWriter writes
// safetensors files instead, without any .metadata (hf_storage.h).
#include "formats/dcp.h"

#include <algorithm>
#include <set>

#include "checked_math.h"
#include "formats/dcp_index.h"
#include "formats/hf_storage.h"
#include "formats/shard_files.h"
#include "formats/torch_dist.h"
#include "formats/torch_pieces.h"
#include "labels.h"
#include "unshard/error.h"

namespace unshard {
namespace {

constexpr std::string_view metadata_name = ".metadata";

bool is_data_file(std::string_view name) {
  return name.ends_with(".distcp");
}
/// `__<rank>.metadata`.
bool is_rank_metadata(std::string_view name) {
  return name.starts_with("__") && name.ends_with(metadata_name) && name.size() > 2 + metadata_name.size() &&
         name.find_first_not_of("0123456789", 2) == name.size() - metadata_name.size();
}

std::set<std::string> names_of(const Tree& tree, const std::vector<std::string>& folders, bool (*wanted)(std::string_view)) {
  std::set<std::string> names;
  for (const std::string& folder : folders) {
    for (const std::string& name : tree.children(folder)) {
      if (wanted(name)) names.insert(name);
    }
  }
  return names;
}

/// The state of an optimizer beside the folder of its model, as accelerate names it: no checkpoint of weights, unless it is what was given.
bool is_side_folder(const Tree& tree, const std::string& folder) {
  constexpr std::string_view optimizer = "optimizer";
  const std::string_view name = base_name(folder);
  if (!name.starts_with(optimizer) || name.find_first_not_of("_0123456789", optimizer.size()) != std::string_view::npos) return false;
  return std::find(tree.roots.begin(), tree.roots.end(), folder) == tree.roots.end();
}

/// One item, as pieces of the catalog.
Chunk read_item(const IndexedTensor& tensor, const DcpPiece& piece, File& open_file, const std::string& label) {
  const TorchContents item = read_torch_item(open_file, piece.position, piece.size_bytes, label);
  if (item.entries.size() != 1 || item.entries.front().kind != TorchEntry::Kind::tensor || !item.entries.front().path.empty()) {
    throw Error(ErrorCode::bad_input, label + ": holds something else than one plain tensor" +
                                          (item.unreadable.empty() ? "" : ": " + item.unreadable.front().second));
  }
  const StoredTensor& stored = item.entries.front().tensor;
  if (stored.dtype != tensor.dtype || !(stored.shape == piece.box.extent)) {
    throw Error(ErrorCode::bad_input, label + ": holds " + std::string(info(stored.dtype).name) + " " + to_string(stored.shape) +
                                          ", but .metadata says " + std::string(info(tensor.dtype).name) + " " +
                                          to_string(piece.box.extent) + " for its piece " + to_string(piece.box));
  }
  Chunk chunk = chunk_of(stored);
  chunk.box = piece.box;
  return chunk;
}

void require_whole_file(const std::vector<DcpPiece>& pieces, const File& open_file, const std::string& label) {
  std::uint64_t end = 0;
  for (const DcpPiece& piece : pieces) end = std::max(end, piece.position + piece.size_bytes);  // no overflow: checked in dcp_metadata.cpp
  if (end <= open_file.size()) return;
  throw Error(ErrorCode::bad_input, printable(label, 4096) + ": has " + std::to_string(open_file.size()) +
                                        " bytes, but .metadata places weights up to byte " + std::to_string(end) +
                                        "; it is truncated or of another save, copy it again");
}

class DcpFormat final : public CheckpointFormat {
 public:
  [[nodiscard]] std::string_view name() const override { return "dcp"; }
  [[nodiscard]] std::string_view description() const override {
    return "torch.distributed.checkpoint folder (.metadata and *.distcp, or safetensors shards with DCP metadata)";
  }

  [[nodiscard]] bool recognises(const Tree& tree, const std::string& folder) const override {
    if (holds_hf_storage_shards(tree, folder)) return true;
    return holds_dcp_files(tree, folder) && !is_side_folder(tree, folder) && !is_of_torch_dist(tree, folder);
  }

  [[nodiscard]] Source describe(const Tree& tree, const std::vector<std::string>& folders) const override {
    return holds_hf_storage_shards(tree, folders.front()) ? describe_hf_storage(tree, folders) : describe_dcp_folders(tree, folders);
  }

  [[nodiscard]] Bytes read_index(const Source& source, FileId file, File& open_file) const override {
    const std::string& label = source.index_files[file].label;
    if (is_hf_storage_shard(base_name(label))) return pack_hf_storage_shard(open_file, label);
    const std::vector<DcpEntry> entries = read_dcp_metadata(open_file, label);
    return pack_dcp_index(entries, kinds_by_path(entries), label);
  }

  void apply_index(const Tree& tree, std::span<const Bytes> packed, Source& source) const override {
    if (is_hf_storage_shard(base_name(source.index_files.front().label))) return apply_hf_storage(packed, source);
    apply_dcp_index(tree, packed, source);
    if (has_megatron_names(source.tensors)) source.names_are_published = false;
    note_dcp_leftovers(tree, source);
  }

  [[nodiscard]] ShardContents read_headers(const Source& source, FileId file, File& open_file) const override {
    return is_hf_storage_shard(base_name(source.files[file].label)) ? read_hf_storage_shard(source, file, open_file)
                                                                    : read_dcp_items(source, file, open_file);
  }
};

}  // namespace

bool holds_dcp_files(const Tree& tree, const std::string& folder) {
  const auto names = tree.children(folder);
  return std::any_of(names.begin(), names.end(),
                     [](const std::string& name) { return name == metadata_name || is_data_file(name) || is_rank_metadata(name); });
}

bool is_of_torch_dist(const Tree& tree, const std::string& folder) {
  return tree.find(join_path(folder, "metadata.json")) != nullptr || tree.find(join_path(folder, "common.pt")) != nullptr;
}

Source describe_dcp_folders(const Tree& tree, const std::vector<std::string>& folders) {
  Source source;
  source.folder = folders.front();
  if (auto metadata = shard_named(tree, folders, std::string(metadata_name))) {
    source.index_files.push_back(std::move(*metadata));
  } else {
    for (const std::string& name : names_of(tree, folders, is_rank_metadata))
      source.index_files.push_back(*shard_named(tree, folders, name));
  }
  std::erase_if(source.index_files, [&](const ShardFile& file) { return !is_usable(tree, file, source.findings); });
  if (source.index_files.empty() && source.findings.empty()) {
    const bool unfinished = shard_named(tree, folders, ".metadata.tmp").has_value();
    source.findings.push_back({Severity::error, std::string(metadata_name),
                               "is missing in " + printable(folders.front(), 4096) +
                                   (unfinished ? ", there is only .metadata.tmp: the save did not finish"
                                               : ": rank 0 writes it on its node when a save has finished; give the folder that has it "
                                                 "with --local-dir as well"),
                               ErrorCode::bad_input});
  }
  return source;
}

void note_dcp_leftovers(const Tree& tree, Source& source) {
  const bool all_read = std::none_of(source.findings.begin(), source.findings.end(),
                                     [](const Finding& finding) { return finding.severity == Severity::error; });
  if (source.tensors.empty() && all_read) {
    const bool optimizer = std::any_of(source.set_aside.begin(), source.set_aside.end(),
                                       [](const SetAside& aside) { return aside.reason == "optimizer state"; });
    source.findings.push_back({Severity::error, source.index_files.front().label,
                               std::string("names ") + (optimizer ? "optimizer state" : "no tensors") +
                                   " and no weights of a model; give the folder that holds the model",
                               ErrorCode::bad_input});
  }
  std::set<std::string> used;
  for (const ShardFile& file : source.files) used.insert(std::string(base_name(file.label)));
  std::vector<std::string> unused;
  for (const std::string& name : names_of(tree, source.folders, is_data_file)) {
    if (!used.contains(name)) unused.push_back(name);
  }
  if (unused.empty() || !all_read) return;
  source.findings.push_back(
      {Severity::note, source.folder,
       name_list(unused, 12) + ": holds no weights that .metadata names (other state, or left from another save); not read",
       ErrorCode::bad_input});
}

ShardContents read_dcp_items(const Source& source, FileId file, File& open_file) {
  const std::string& label = source.files[file].label;
  ShardContents contents;
  if (file == 0) {
    for (const IndexedTensor& tensor : source.tensors) contents.pieces.push_back({tensor.name, tensor.dtype, tensor.shape, {}});
  }
  const std::vector<DcpPiece> pieces = unpack_contents(source, source.files[file]);
  require_whole_file(pieces, open_file, label);
  for (const DcpPiece& piece : pieces) {
    const IndexedTensor& tensor = source.tensors[piece.tensor];
    try {
      const Chunk chunk = read_item(tensor, piece, open_file, "the item at byte " + std::to_string(piece.position));
      contents.pieces.push_back({tensor.name, tensor.dtype, tensor.shape, {chunk}});
    } catch (const Error& error) {
      contents.findings.push_back({Severity::error, tensor.name, error.what(), error.code()});
    }
  }
  return contents;
}

const CheckpointFormat& dcp_format() {
  static const DcpFormat format;
  return format;
}

}  // namespace unshard
