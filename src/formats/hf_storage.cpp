// Header (torch/distributed/checkpoint/filesystem.py, _write_files_from_queue; _hf_utils.py): `__metadata__` has DCP_SHARDING_INFO, the
// JSON text {"<name>": {"saved_offsets": [row, …]}, …} ([] for a tensor without dimensions); the shapes in the header are those of the
// pieces.
#include "formats/hf_storage.h"

#include <algorithm>
#include <map>
#include <set>

#include "checked_math.h"
#include "formats/json_events.h"
#include "formats/safetensors_header.h"
#include "formats/shard_files.h"
#include "unshard/error.h"
#include "wire.h"

namespace unshard {
namespace {

constexpr std::string_view first_part = "shard-", second_part = "-model-", third_part = "-of-", ending = ".safetensors";

/// Digits from the front of `text`, which is shortened.
std::optional<std::uint32_t> take_digits(std::string_view& text) {
  std::uint32_t value = 0;
  std::size_t length = 0;
  for (; length < text.size() && length < 9 && text[length] >= '0' && text[length] <= '9'; ++length)
    value = value * 10 + static_cast<std::uint32_t>(text[length] - '0');
  text.remove_prefix(length);
  return length == 0 ? std::nullopt : std::optional(value);
}

bool take(std::string_view& text, std::string_view part) {
  if (!text.starts_with(part)) return false;
  text.remove_prefix(part.size());
  return true;
}

/// What a shard's name says; all count from 1.
struct ShardName {
  std::uint32_t writer = 0;  ///< the rank
  std::uint32_t file = 0, files = 0;
};

/// None for other names.
std::optional<ShardName> parse_name(std::string_view name) {
  if (!take(name, first_part)) return std::nullopt;
  const auto writer = take_digits(name);
  if (!writer || !take(name, second_part)) return std::nullopt;
  const auto file = take_digits(name);
  if (!file || !take(name, third_part)) return std::nullopt;
  const auto files = take_digits(name);
  if (!files || name != ending) return std::nullopt;
  return ShardName{*writer, *file, *files};
}

std::string five_digits(std::uint32_t number) {
  const std::string digits = std::to_string(number);
  return std::string(digits.size() < 5 ? 5 - digits.size() : 0, '0') + digits;
}

/// `shard-00002-model-*-of-00003.safetensors`; 0 stands for any.
std::string name_of(const ShardName& name) {
  const auto part = [](std::uint32_t number) { return number == 0 ? std::string("*") : five_digits(number); };
  return std::string(first_part) + part(name.writer) + std::string(second_part) + part(name.file) + std::string(third_part) +
         part(name.files) + std::string(ending);
}

constexpr std::size_t most_missing = 20;

/// Files that must have been there: every rank before the last one has its part of some tensor, and every file that `of` counts has
/// tensors. How many ranks saved is stated nowhere.
void find_missing(const std::vector<ShardName>& names, Source& source) {
  std::set<std::uint32_t> writers, files;
  for (const ShardName& name : names) {
    if (name.files != names.front().files) {
      source.findings.push_back({Severity::error, name_of(name),
                                 "belongs to a save of " + std::to_string(name.files) + " files, others to one of " +
                                     std::to_string(names.front().files) + "; give the files of one save",
                                 ErrorCode::bad_input});
      return;
    }
    writers.insert(name.writer);
    files.insert(name.file);
  }
  const std::uint32_t any_file = names.front().files == 1 ? 1 : 0;
  const auto report = [&](const std::set<std::uint32_t>& found, std::uint32_t end, const std::string& why, bool are_writers) {
    std::size_t named = 0;
    for (std::uint32_t number = 1; number <= end && named < most_missing; ++number) {
      if (found.contains(number)) continue;
      ++named;
      const ShardName missing{are_writers ? number : 0, are_writers ? any_file : number, names.front().files};
      source.findings.push_back({Severity::error, name_of(missing),
                                 "is missing: " + why + "; copy it here, or give the folder that has it with --local-dir as well",
                                 ErrorCode::bad_input});
    }
  };
  report(writers, *writers.rbegin(), "ranks up to number " + std::to_string(*writers.rbegin()) + " have files", true);
  report(files, names.front().files, "the names of the others count " + std::to_string(names.front().files) + " files", false);
  const std::string next = name_of({*writers.rbegin() + 1, any_file, names.front().files});
  source.shape_hint = next + " (or a later one) may be missing, since the files do not say how many ranks saved them";
  source.findings.push_back(
      {Severity::note, next,
       "the files do not say how many ranks saved them, so that this one may be missing: then tensors are smaller than "
       "config.json implies, which merge finds where it knows the model type",
       ErrorCode::bad_input});
}

/// A piece: a tensor of the header with its place in the whole.
struct ShardPiece {
  SafetensorsTensor stored;
  Shape offset, end;
};

/// The offsets that the header states, by name.
std::map<std::string, Shape> offsets_in(const SafetensorsHeader& header, const std::string& label) {
  const auto missing = [&] {
    return Error(ErrorCode::bad_input, label + ": its header has no DCP_SHARDING_INFO, which would say where its pieces belong");
  };
  if (!header.metadata) throw missing();
  const auto found = header.metadata->find("DCP_SHARDING_INFO");
  if (found == header.metadata->end()) throw missing();
  std::map<std::string, Shape> offsets;
  read_json(found->second, label, "DCP_SHARDING_INFO", [&](const JsonEvent& event) {
    if (event.path.size() != 2 || event.path[1] != "saved_offsets") return;
    Shape& offset = offsets[event.path[0]];
    if (event.kind == JsonEvent::Kind::array && event.arrays == 0) return;
    if (event.kind != JsonEvent::Kind::number || event.arrays != 1)
      throw Error(ErrorCode::bad_input, label + ": '" + printable(event.path[0]) + "': its saved_offsets are no list of numbers");
    offset.push_back(event.number);
  });
  return offsets;
}

std::vector<ShardPiece> read_pieces(File& file, const std::string& label) {
  SafetensorsHeader header = read_safetensors_header(file, label);
  const std::map<std::string, Shape> offsets = offsets_in(header, label);
  std::vector<ShardPiece> pieces;
  for (SafetensorsTensor& tensor : header.tensors) {
    const auto offset = offsets.find(tensor.name);
    if (offset == offsets.end() || offset->second.size() != tensor.shape.size()) {
      throw Error(ErrorCode::bad_input, label + ": '" + printable(tensor.name) +
                                            "': its DCP_SHARDING_INFO does not give an offset for each of " +
                                            std::to_string(tensor.shape.size()) + " dimensions");
    }
    ShardPiece piece{std::move(tensor), offset->second, {}};
    for (std::size_t d = 0; d < piece.offset.size(); ++d) {
      const auto end = checked_add(piece.offset[d], piece.stored.shape[d]);
      if (!end) throw Error(ErrorCode::bad_input, label + ": '" + printable(piece.stored.name) + "': its offset is impossible");
      piece.end.push_back(*end);
    }
    pieces.push_back(std::move(piece));
  }
  return pieces;
}

}  // namespace

bool is_hf_storage_shard(std::string_view name) {
  return parse_name(name).has_value();
}

bool holds_hf_storage_shards(const Tree& tree, const std::string& folder) {
  const auto names = tree.children(folder);
  return std::any_of(names.begin(), names.end(), [](const std::string& name) { return is_hf_storage_shard(name); });
}

Source describe_hf_storage(const Tree& tree, const std::vector<std::string>& folders) {
  Source source;
  source.folder = folders.front();
  std::set<std::string> names;
  for (const std::string& folder : folders) {
    for (const std::string& name : tree.children(folder)) {
      if (is_hf_storage_shard(name)) names.insert(name);
    }
  }
  std::vector<ShardName> parsed;
  for (const std::string& name : names) {
    ShardFile file = *shard_named(tree, folders, name);
    parsed.push_back(*parse_name(name));
    file.rank = parsed.back().writer;
    if (is_usable(tree, file, source.findings)) source.files.push_back(std::move(file));
  }
  find_missing(parsed, source);
  sort_shards(source.files);
  source.index_files = source.files;
  for (ShardFile& file : source.index_files) file.copies.clear();  // compared by read_catalog
  return source;
}

Bytes pack_hf_storage_shard(File& file, const std::string& label) {
  WireWriter out;
  for (const ShardPiece& piece : read_pieces(file, printable(label, 4096))) {
    out.text(piece.stored.name);
    out.number(static_cast<std::uint64_t>(piece.stored.dtype));
    out.shape(piece.end);
  }
  return out.take();
}

void apply_hf_storage(std::span<const Bytes> packed, Source& source) {
  std::map<std::string, std::size_t> places;
  for (const Bytes& bytes : packed) {
    for (WireReader in(bytes); !in.at_end();) {
      IndexedTensor tensor{in.text(), static_cast<DType>(in.number_up_to(static_cast<std::uint64_t>(DType::c128))), in.shape()};
      const auto [place, is_new] = places.try_emplace(tensor.name, source.tensors.size());
      if (is_new) {
        source.tensors.push_back(std::move(tensor));
        continue;
      }
      IndexedTensor& known = source.tensors[place->second];
      if (known.dtype != tensor.dtype || known.shape.size() != tensor.shape.size()) {
        throw Error(ErrorCode::bad_input, printable(tensor.name) + ": is " + std::string(info(known.dtype).name) + " of " +
                                              std::to_string(known.shape.size()) + " dimensions in one shard and " +
                                              std::string(info(tensor.dtype).name) + " of " + std::to_string(tensor.shape.size()) +
                                              " in another; give the files of one checkpoint");
      }
      for (std::size_t d = 0; d < known.shape.size(); ++d) known.shape[d] = std::max(known.shape[d], tensor.shape[d]);
    }
  }
  std::sort(source.tensors.begin(), source.tensors.end(), [](const IndexedTensor& a, const IndexedTensor& b) { return a.name < b.name; });
}

ShardContents read_hf_storage_shard(const Source& source, FileId file, File& open_file) {
  ShardContents contents;
  for (ShardPiece& piece : read_pieces(open_file, printable(source.files[file].label, 4096))) {
    const auto whole = std::lower_bound(source.tensors.begin(), source.tensors.end(), piece.stored.name,
                                        [](const IndexedTensor& tensor, const std::string& name) { return tensor.name < name; });
    if (whole == source.tensors.end() || whole->name != piece.stored.name)
      throw Error(ErrorCode::bad_input, printable(source.files[file].label, 4096) + ": has changed while it was read");
    Piece made{piece.stored.name, piece.stored.dtype, whole->shape, {}};
    if (piece.stored.size_bytes > 0) {
      Chunk chunk;
      chunk.box = {piece.offset, piece.stored.shape};
      if (!inside(chunk.box, whole->shape))
        throw Error(ErrorCode::bad_input, printable(source.files[file].label, 4096) + ": has changed while it was read");
      chunk.strides = row_major_strides(piece.stored.shape);
      chunk.position = chunk.record_position = piece.stored.position;
      chunk.record_bytes = piece.stored.size_bytes;
      made.chunks.push_back(chunk);
    }
    contents.pieces.push_back(std::move(made));
  }
  return contents;
}

}  // namespace unshard
