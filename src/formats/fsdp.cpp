// Rank files of FSDP as verl writes them (verl/utils/checkpoint/fsdp_checkpoint_manager.py): one torch.save dictionary for each rank,
//
//     model_world_size_<W>_rank_<R>.pt           what is read here
//     optim_…, extra_state_world_size_<W>_rank_<R>.pt   never opened
//     fsdp_config.json                           {"FSDP_version": 2, "world_size": W}; older runs have none
//     huggingface/                               config.json, tokenizer
//
// A value is a DTensor (FSDP2, and FSDP1 with a device mesh: see placement.h), a ShardedTensor (FSDP1 without one: every piece states its own offsets), or a plain
// tensor that the rank holds whole. FSDP1's LOCAL_STATE_DICT holds flat parameters, 1-D and of no use without a list that is not in the file.
#include "formats/fsdp.h"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>

#include "formats/placement.h"
#include "formats/torch_file.h"

namespace unshard {
namespace {

constexpr std::uint32_t most_ranks = 1U << 24U;  // more than any job has; bounds what a file name can make us do
constexpr std::string_view config_name = "fsdp_config.json";
constexpr std::string_view lfs_pointer = "version https://git-lfs.github.com/spec/";

struct RankName {
  std::uint32_t world_size = 0, rank = 0;
};

/// A decimal number as trainers print it, from the front of `text`, which is shortened.
std::optional<std::uint32_t> take_number(std::string_view& text) {
  std::uint32_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const auto length = static_cast<std::size_t>(end - text.data());
  if (error != std::errc{} || value > most_ranks || (length > 1 && text.front() == '0')) return std::nullopt;
  text.remove_prefix(length);
  return value;
}

/// `<kind>_world_size_<W>_rank_<R>.pt`.
std::optional<RankName> parse_name(std::string_view name, std::string_view kind) {
  constexpr std::string_view size_part = "_world_size_", rank_part = "_rank_";
  if (!name.starts_with(kind)) return std::nullopt;
  name.remove_prefix(kind.size());
  if (!name.starts_with(size_part)) return std::nullopt;
  name.remove_prefix(size_part.size());
  const auto world_size = take_number(name);
  if (!world_size || *world_size == 0 || !name.starts_with(rank_part)) return std::nullopt;
  name.remove_prefix(rank_part.size());
  const auto rank = take_number(name);
  if (!rank || name != ".pt") return std::nullopt;
  return RankName{*world_size, *rank};
}

Error bad_input(const std::string& subject, const std::string& what) { return {ErrorCode::bad_input, printable(subject, 4096) + ": " + what}; }

/// What fsdp_config.json says; none when there is none, or when it does not say.
std::optional<std::uint32_t> stated_world_size(const Tree& tree, const std::string& path) {
  const TreeEntry* entry = tree.find(path);
  if (entry == nullptr) return std::nullopt;
  if (!entry->problem.empty()) throw bad_input(path, entry->problem);
  if (entry->status.kind != FileKind::file) throw bad_input(path, "is not a file");
  const auto config = nlohmann::json::parse(entry->content, nullptr, false);
  if (!config.is_object()) throw bad_input(path, "is not a JSON object; remove it to go by the file names");
  const auto found = config.find("world_size");
  if (found == config.end()) return std::nullopt;
  if (!found->is_number_unsigned() || found->get<std::uint64_t>() == 0 || found->get<std::uint64_t>() > most_ranks) {
    const std::string value = found->is_number() ? found->dump() : std::string("a ") + found->type_name();
    throw bad_input(path, "world_size is " + value + ", which is no number of ranks; remove the file to go by the file names");
  }
  return found->get<std::uint32_t>();
}

/// `path` as seen from the folder given above it.
std::string label_of(const Tree& tree, const std::string& path) {
  std::string label = path;
  for (const std::string& root : tree.roots) {
    const std::string prefix = root.ends_with('/') ? root : root + "/";
    if (path.starts_with(prefix) && path.size() - prefix.size() < label.size()) label = path.substr(prefix.size());
  }
  return label;
}

/// Files of one kind in all folders: world size, then rank, to paths.
using Found = std::map<std::uint32_t, std::map<std::uint32_t, std::vector<std::string>>>;

Found find_files(const Tree& tree, const std::vector<std::string>& folders, std::string_view kind) {
  Found found;
  for (const std::string& folder : folders) {
    for (const std::string& name : tree.children(folder)) {
      if (const auto parsed = parse_name(name, kind)) found[parsed->world_size][parsed->rank].push_back(join_path(folder, name));
    }
  }
  return found;
}

std::uint32_t choose_world_size(const Tree& tree, const std::vector<std::string>& folders, const Found& found) {
  std::optional<std::uint32_t> stated;
  std::string stated_by;
  for (const std::string& folder : folders) {
    const std::string path = join_path(folder, config_name);
    const auto here = stated_world_size(tree, path);
    if (stated && here && *stated != *here) {
      throw bad_input(path, "world_size is " + std::to_string(*here) + " but " + printable(stated_by, 4096) + " says " + std::to_string(*stated) +
                                "; give the folders of one checkpoint");
    }
    if (!here) continue;
    stated = here;
    stated_by = path;
  }
  if (stated) return *stated;
  if (found.size() == 1) return found.begin()->first;
  std::vector<std::string> sizes;
  for (const auto& [world_size, ranks] : found) {
    sizes.push_back("world size " + std::to_string(world_size) + " (" + std::string(base_name(ranks.begin()->second.front())) + ")");
  }
  throw bad_input(folders.front(), "rank files of several jobs: " + name_list(sizes) + ", and no " + std::string(config_name) +
                                       " that says which counts; move the others away");
}

/// `missing ranks 0-7, 12 of 16`, or "". The names of files may speak of millions of ranks, so they are not listed one by one.
std::string missing_ranks(const std::map<std::uint32_t, std::vector<std::string>>& present, std::uint32_t world_size) {
  constexpr int most_ranges = 16;
  std::string text;
  int ranges = 0;
  std::uint32_t next = 0;
  const auto gap = [&](std::uint32_t end) {
    if (next >= end || ++ranges > most_ranges) return;
    text += (text.empty() ? "" : ", ") + std::to_string(next) + (end - next > 1 ? "-" + std::to_string(end - 1) : "");
  };
  for (const auto& [rank, paths] : present) {
    if (rank >= world_size) break;
    gap(rank);
    next = rank + 1;
  }
  gap(world_size);
  if (text.empty()) return "";
  const std::string more = ranges > most_ranges ? " and " + std::to_string(ranges - most_ranges) + " more ranges" : "";
  return std::string(ranges > 1 || text.find('-') != std::string::npos ? "missing ranks " : "missing rank ") + text + more + " of " + std::to_string(world_size);
}

/// The files of one rank, found in one folder or more.
ShardFile one_file(const Tree& tree, std::uint32_t rank, const std::vector<std::string>& paths) {
  const TreeEntry& first = *tree.find(paths.front());
  ShardFile file;
  file.path = paths.front();
  file.label = label_of(tree, file.path);
  file.size_bytes = first.status.size_bytes;
  file.rank = rank;
  file.nodes = first.nodes;
  for (std::size_t i = 1; i < paths.size(); ++i) {
    const TreeEntry& other = *tree.find(paths[i]);
    if (other.status.kind != first.status.kind || other.status.size_bytes != first.status.size_bytes) {
      throw bad_input(paths[i], "has " + std::to_string(other.status.size_bytes) + " bytes but " + printable(paths.front(), 4096) + " has " +
                                    std::to_string(first.status.size_bytes) + "; give the folders of one checkpoint");
    }
    file.copies.push_back({paths[i], other.nodes});
    for (const auto& nodes : other.other_copies) file.copies.push_back({paths[i], nodes});
  }
  return file;
}

/// Why the file can't be read, by what its listing says.
std::string visible_problem(const FileStatus& status) {
  if (status.kind == FileKind::folder) return "is a folder, not a file";
  if (status.kind == FileKind::other) return "is a dead link or no regular file";
  if (status.size_bytes == 0) return "is empty (0 bytes); copy it again";
  return "";
}

void note_side_files(const Tree& tree, const std::vector<std::string>& folders, std::string_view kind, const std::string& what, Source& source) {
  const Found found = find_files(tree, folders, kind);
  const auto same_job = found.find(source.world_size);
  if (same_job == found.end()) return;
  const std::string missing = missing_ranks(same_job->second, source.world_size);
  if (!missing.empty()) source.findings.push_back({Severity::note, what, missing + "; merging the model does not need them", ErrorCode::bad_input});
}

Source describe_files(const Tree& tree, const std::vector<std::string>& folders) {
  const Found found = find_files(tree, folders, "model");
  Source source;
  source.folder = folders.front();
  source.world_size = choose_world_size(tree, folders, found);
  for (const auto& [world_size, ranks] : found) {
    if (world_size == source.world_size) continue;
    source.findings.push_back({Severity::note, source.folder,
                               std::to_string(ranks.size()) + " rank file" + (ranks.size() == 1 ? "" : "s") + " of world size " + std::to_string(world_size) +
                                   " left from another run, not used",
                               ErrorCode::bad_input});
  }
  const auto chosen = found.find(source.world_size);
  const auto ranks = chosen == found.end() ? std::map<std::uint32_t, std::vector<std::string>>{} : chosen->second;
  if (const std::string missing = missing_ranks(ranks, source.world_size); !missing.empty()) {
    source.findings.push_back({Severity::error, source.folder, missing + "; give all folders that hold rank files with --local-dir", ErrorCode::bad_input});
  }
  for (const auto& [rank, paths] : ranks) {
    ShardFile file = one_file(tree, rank, paths);
    std::string problem = visible_problem(tree.find(file.path)->status);
    if (rank >= source.world_size) problem = "is rank " + std::to_string(rank) + " of only " + std::to_string(source.world_size) + " ranks";
    if (problem.empty()) {
      source.files.push_back(std::move(file));
    } else {
      source.findings.push_back({Severity::error, file.label, problem, ErrorCode::bad_input});
    }
  }
  note_side_files(tree, folders, "optim", "optimizer files", source);
  note_side_files(tree, folders, "extra_state", "extra state files", source);
  return source;
}

Chunk chunk_of(const StoredTensor& stored) {
  Chunk chunk;
  chunk.position = stored.position;
  chunk.strides = stored.strides;
  chunk.record_position = stored.record_position;
  chunk.record_bytes = stored.record_bytes;
  chunk.record_crc = stored.record_crc;
  chunk.has_crc = stored.has_crc;
  chunk.big_endian = stored.big_endian;
  return chunk;
}

Piece plain_piece(const TorchEntry& entry) {
  Piece piece{entry.path, entry.tensor.dtype, entry.tensor.shape, {}};
  if (volume(piece.shape) == 0) return piece;
  Chunk chunk = chunk_of(entry.tensor);
  chunk.box = whole(piece.shape);
  chunk.plain = true;
  piece.chunks.push_back(chunk);
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
    for (std::size_t d = 0; d < placed.local_offset.size(); ++d) chunk.position += placed.local_offset[d] * tensor.local.strides[d] * size_bytes;
    piece.chunks.push_back(chunk);
  }
  return piece;
}

Piece sharded_piece(const TorchEntry& entry, const Source& source) {
  const StoredShardedTensor& tensor = *entry.sharded;
  if (tensor.world_size != 0 && tensor.world_size != source.world_size) {
    throw Error(ErrorCode::bad_input, "it was saved by " + std::to_string(tensor.world_size) + " ranks, the file's name says " + std::to_string(source.world_size));
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

/// FSDP1's LOCAL_STATE_DICT: with use_orig_params its other entries are 1-D slices under the parameters' names, so none of the file is used.
std::optional<Finding> flat_parameters(const TorchContents& contents) {
  std::vector<std::string> names;
  for (const TorchEntry& entry : contents.entries) {
    if (is_flat_parameter(entry)) names.push_back(entry.path);
  }
  if (names.empty()) return std::nullopt;
  return Finding{Severity::error, names.front(),
                 "is a flat parameter" + (names.size() > 1 ? " (as are " + std::to_string(names.size() - 1) + " more)" : std::string{}) +
                     ": LOCAL_STATE_DICT joins all parameters of a module end to end, and the list of their names and shapes that would take them apart is not in "
                     "the file; save with SHARDED_STATE_DICT or FULL_STATE_DICT",
                 ErrorCode::unsupported};
}

void refuse_lfs_pointer(File& file, const std::string& label) {
  if (file.size() > 1024 || file.size() < lfs_pointer.size()) return;
  std::string start(lfs_pointer.size(), '\0');
  file.read_at(0, std::as_writable_bytes(std::span(start)));
  if (start == lfs_pointer) throw bad_input(label, "is a git-lfs pointer, not the file itself; run `git lfs pull`");
}

class FsdpFormat final : public CheckpointFormat {
 public:
  [[nodiscard]] std::string_view name() const override { return "fsdp"; }
  [[nodiscard]] std::string_view description() const override { return "FSDP rank files (model_world_size_<W>_rank_<R>.pt)"; }

  [[nodiscard]] bool recognises(const Tree& tree, const std::string& folder) const override {
    const auto names = tree.children(folder);
    return std::any_of(names.begin(), names.end(), [](const std::string& name) { return parse_name(name, "model").has_value(); });
  }

  [[nodiscard]] Source describe(const Tree& tree, const std::vector<std::string>& folders) const override { return describe_files(tree, folders); }

  [[nodiscard]] ShardContents read_headers(const Source& source, FileId file, File& open_file) const override {
    const std::string& label = source.files.at(file).label;
    refuse_lfs_pointer(open_file, label);
    TorchContents contents = read_torch_file(open_file, label, source.files[file].rank);
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

 private:
  static Piece piece_of(const TorchEntry& entry, const Source& source) {
    switch (entry.kind) {
      case TorchEntry::Kind::tensor: return plain_piece(entry);
      case TorchEntry::Kind::dtensor: return dtensor_piece(entry);
      case TorchEntry::Kind::sharded_tensor: return sharded_piece(entry, source);
    }
    throw Error(ErrorCode::internal, "an entry of unknown kind");
  }
};

}  // namespace

const CheckpointFormat& fsdp_format() {
  static const FsdpFormat format;
  return format;
}

}  // namespace unshard
