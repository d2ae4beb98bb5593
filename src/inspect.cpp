// The command `inspect`: everything that a file or a folder holds. Nothing of it is executed; names are shown so that no terminal takes
// them for commands.
#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "adapter_input.h"
#include "catalog_cache.h"
#include "catalog_summary.h"
#include "check_report.h"
#include "formats/dcp_metadata.h"
#include "formats/hdf5_model.h"
#include "formats/safetensors_header.h"
#include "formats/torch_file.h"
#include "input.h"
#include "json_text.h"
#include "unshard/agree.h"
#include "unshard/merge.h"
#include "value_bytes.h"

namespace unshard {
namespace {

using Json = nlohmann::ordered_json;

/// What is shown: lines for a person, or the same as JSON.
struct Listing {
  std::vector<std::string> lines;
  Json json;

  [[nodiscard]] std::string text(bool as_json) const {
    if (as_json) return json.dump(2, ' ', false, Json::error_handler_t::replace);
    std::string all;
    for (const std::string& line : lines) all += (all.empty() ? "" : "\n") + line;
    return all;
  }
};

Listing listing_of(const std::string& path, std::string_view kind, std::size_t tensors) {
  Listing listing;
  listing.lines.push_back(printable(path, 4096) + ": " + std::string(kind) + ", " + counted(tensors, "tensor"));
  listing.json = {{"path", path}, {"kind", kind}, {"tensors", Json::array()}};
  return listing;
}

void add_tensor(Listing& listing, const std::string& name, DType dtype, const Shape& shape, const std::string& how) {
  listing.lines.push_back(printable(name) + "  " + std::string(info(dtype).name) + "  " + to_string(shape) +
                          (how.empty() ? "" : "  " + how));
  Json json{{"name", name}, {"dtype", info(dtype).name}, {"shape", json_of(shape)}};
  if (!how.empty()) json["stored_as"] = how;
  listing.json["tensors"].push_back(std::move(json));
}

void add_object(Listing& listing, const std::string& where, const ObjectNote& object) {
  listing.lines.push_back(where + printable(object.key) + ": " + printable(object.what) + " (not a tensor; not executed)");
  listing.json["objects"].push_back({{"key", object.key}, {"what", object.what}});
}

void add_set_aside(Listing& listing, const SetAside& aside) {
  if (aside.dtype) return add_tensor(listing, aside.name, *aside.dtype, aside.shape, aside.reason + ", not read");
  add_object(listing, "", {0, aside.name, "object"});
}

template <class Number>
std::string numbers(const std::vector<Number>& values) {
  std::string out = "[";
  for (std::size_t i = 0; i < values.size(); ++i) out += (i > 0 ? ", " : "") + std::to_string(values[i]);
  return out + "]";
}

std::string text_of(const Placement& placement) {
  switch (placement.kind) {
    case Placement::Kind::shard:
      return "Shard(" + std::to_string(placement.dim) + ")";
    case Placement::Kind::strided_shard:
      return "_StridedShard(" + std::to_string(placement.dim) + ", split_factor=" + std::to_string(placement.split_factor) + ")";
    case Placement::Kind::replicate:
      return "Replicate()";
    case Placement::Kind::partial:
      return "Partial()";
  }
  return "?";
}

std::string text_of(const StoredDTensor& tensor) {
  std::string placements;
  for (const Placement& placement : tensor.placements) placements += (placements.empty() ? "" : ", ") + text_of(placement);
  return "DTensor (" + placements + ") on mesh " + numbers(tensor.mesh_sizes) +
         (tensor.outside_mesh ? ", this rank is outside the mesh" : " at " + numbers(tensor.coordinate)) + ", local " +
         to_string(tensor.local.shape);
}

std::string text_of(const StoredShardedTensor& tensor) {
  std::string boxes;
  for (const auto& shard : tensor.shards) boxes += (boxes.empty() ? "" : ", ") + to_string(Box{shard.offset, shard.extent});
  return "ShardedTensor, local " + (boxes.empty() ? "none" : boxes);
}

void add_entry(Listing& listing, const TorchEntry& entry) {
  switch (entry.kind) {
    case TorchEntry::Kind::tensor:
      return add_tensor(listing, entry.path, entry.tensor.dtype, entry.tensor.shape, "");
    case TorchEntry::Kind::dtensor:
      return add_tensor(listing, entry.path, entry.dtensor->local.dtype, entry.dtensor->global_shape, text_of(*entry.dtensor));
    case TorchEntry::Kind::sharded_tensor:
      return add_tensor(listing, entry.path, entry.sharded->dtype, entry.sharded->global_shape, text_of(*entry.sharded));
  }
}

Listing list_torch_file(File& file, const std::string& path) {
  const TorchContents contents = read_torch_file(file, printable(path, 4096));
  Listing listing = listing_of(path, "file of torch.save", contents.entries.size());
  for (const TorchEntry& entry : contents.entries) add_entry(listing, entry);
  for (const auto& [where, reason] : contents.unreadable) {
    listing.lines.push_back(printable(where) + ": can't be read: " + printable(reason));
    listing.json["unreadable"].push_back({{"key", where}, {"why", reason}});
  }
  for (const ObjectNote& object : contents.objects) add_object(listing, "", object);
  return listing;
}

Listing list_safetensors_file(File& file, const std::string& path) {
  const SafetensorsHeader header = read_safetensors_header(file, printable(path, 4096));
  Listing listing = listing_of(path, "safetensors file", header.tensors.size());
  for (const SafetensorsTensor& tensor : header.tensors) add_tensor(listing, tensor.name, tensor.dtype, tensor.shape, "");
  if (!header.metadata) return listing;
  for (const auto& [key, value] : *header.metadata) listing.lines.push_back("__metadata__ " + printable(key) + ": " + printable(value));
  listing.json["metadata"] = *header.metadata;
  return listing;
}

Listing list_hdf5_file(File& file, const std::string& path) {
  const ShardContents contents = hdf5_contents(file, path);
  Listing listing = listing_of(path, "HDF5 file", contents.pieces.size());
  for (const Piece& piece : contents.pieces) add_tensor(listing, piece.name, piece.dtype, piece.shape, "");
  return listing;
}

/// The entries of a DCP metadata file; of those only the ones with items in `data_file`, unless that is empty.
Listing list_dcp_metadata(File& file, const std::string& path, std::string_view data_file) {
  const std::vector<DcpEntry> entries = read_dcp_metadata(file, printable(path, 4096));
  std::vector<std::pair<const DcpEntry*, std::size_t>> listed;
  for (const DcpEntry& entry : entries) {
    const auto items = static_cast<std::size_t>(
        std::ranges::count_if(entry.items, [&](const DcpItem& item) { return data_file.empty() || item.file == data_file; }));
    if (items > 0 || data_file.empty()) listed.emplace_back(&entry, items);
  }
  const auto tensors = static_cast<std::size_t>(std::ranges::count_if(listed, [](const auto& one) { return one.first->is_tensor; }));
  Listing listing =
      listing_of(path, data_file.empty() ? "metadata of torch.distributed.checkpoint" : "metadata of " + printable(data_file), tensors);
  for (const auto& [entry, items] : listed) {
    if (entry->is_tensor) {
      add_tensor(listing, entry->name, entry->dtype, entry->shape, counted(items, "chunk"));
    } else {
      add_object(listing, "", {0, entry->name, "object"});
    }
  }
  return listing;
}

/// The names of what is in a `.distcp` file are in the `.metadata` beside it.
std::string list_dcp_file(FileSystem& files, const std::string& path, bool json) {
  const bool is_data = path.ends_with(".distcp");
  const std::string metadata = is_data ? join_path(parent_path(path), ".metadata") : path;
  if (is_data && !files.status(metadata)) {
    throw Error(ErrorCode::bad_input,
                printable(path, 4096) + ": holds items whose names are in .metadata, which is not beside it; give the folder with both");
  }
  const auto file = files.open_for_reading(metadata);
  return list_dcp_metadata(*file, metadata, is_data ? base_name(path) : std::string_view()).text(json);
}

/// A header length that is small enough, and a JSON object behind it.
bool looks_like_safetensors(File& file, const std::string& path) {
  if (path.ends_with(".safetensors")) return true;
  std::array<std::byte, 9> start{};
  if (file.size() < start.size()) return false;
  file.read_at(0, start);
  return start[8] == std::byte{'{'} && start[6] == std::byte{0} && start[7] == std::byte{0};
}

std::string list_file(FileSystem& files, const std::string& path, bool json) {
  if (path.ends_with(".distcp") || path.ends_with(".metadata")) return list_dcp_file(files, path, json);
  const auto file = files.open_for_reading(path);
  if (is_hdf5(*file)) return list_hdf5_file(*file, path).text(json);
  return (looks_like_safetensors(*file, path) ? list_safetensors_file(*file, path) : list_torch_file(*file, path)).text(json);
}

/// Collective.
std::string list_folder(const Session& session, const Input& input, const std::string& path, bool json, const std::string& cache_dir) {
  FileCache files(session.files, input.source);
  Catalog catalog = read_cached_catalog(session, files, input.tree, input.source, cache_dir);
  prove_coverage(session.comm, files, input.source, catalog, {.compare_payload = false, .deep = false});
  const std::vector<StoredAs> stored = stored_as(session.comm, catalog);
  Listing listing = listing_of(path, format_title(input.source) + " checkpoint", catalog.tensors.size());
  if (const std::string sizes = parallel_sizes(catalog.facts); !sizes.empty()) listing.lines.push_back(sizes);
  MegatronContents contents;
  if (!input.source.names_are_published) {
    contents = megatron_contents(catalog.tensors, catalog.facts, input.source.folder);
    if (const std::string line = line_of(contents); !line.empty()) listing.lines.push_back(line);
    listing.json["layers"] = contents.layers;
    listing.json["experts"] = contents.experts;
  }
  if (!catalog.facts.empty()) listing.json["facts"] = catalog.facts;
  for (TensorId id = 0; id < catalog.tensors.size(); ++id) {
    const TensorRow& row = catalog.tensors[id];
    add_tensor(listing, row.name, row.dtype, row.shape, to_string(stored[id]));
  }
  for (const SetAside& aside : input.source.set_aside) add_set_aside(listing, aside);
  for (const ObjectNote& object : catalog.objects) add_object(listing, printable(input.source.files[object.file].label) + ": ", object);
  for (const auto& findings : {input.source.findings, catalog.findings, contents.findings}) {
    for (const Finding& finding : findings) {
      if (finding.severity == Severity::error) session.log.warning(printable(finding.subject) + ": " + finding.text);
    }
  }
  return listing.text(json);
}

/// Local. The file with the tensors of an adapter's folder; "" when it has none.
std::string adapter_file(FileSystem& files, const std::string& folder) {
  for (const char* name : {adapter_weights_name, old_adapter_weights_name}) {
    const auto status = files.status(join_path(folder, name));
    if (status && status->kind == FileKind::file) return join_path(folder, name);
  }
  return "";
}

/// Collective. The lowest rank that sees `path`, and whether it is a folder there.
struct Place {
  int reader = 0;
  bool is_folder = false;
};
Place find(const Session& session, const std::string& path) {
  const auto status = collectively(session.comm, "inspect", [&] { return session.files.status(path); });
  const auto ranks = static_cast<std::uint64_t>(session.comm.size());
  const std::uint64_t mine =
      status ? 2 * static_cast<std::uint64_t>(session.comm.rank()) + (status->kind == FileKind::folder ? 1 : 0) : 2 * ranks;
  const std::uint64_t lowest = session.comm.reduce_all(mine, Reduction::min);
  if (lowest == 2 * ranks) throw Error(ErrorCode::bad_input, "inspect: " + printable(path, 4096) + ": is not there; check the path");
  return {static_cast<int>(lowest / 2), lowest % 2 == 1};
}

}  // namespace

std::string inspect(const Session& session, const std::string& path, bool json, const std::string& cache_dir) {
  const Place place = find(session, path);
  const auto from_reader = [&](const auto& make) {
    return text_from(session.comm, place.reader,
                     collectively(session.comm, "inspect", [&] { return session.comm.rank() == place.reader ? make() : std::string{}; }));
  };
  std::string shown = path, text;
  if (place.is_folder) {
    std::optional<Input> input;
    const auto failure = attempt([&] { input = open_input(session, "auto", {path}); });  // the same on every rank
    if (input) {
      text = list_folder(session, *input, path, json, cache_dir);
    } else if (shown = from_reader([&] { return adapter_file(session.files, path); }); shown.empty() || is_stop(failure->code())) {
      throw Error(*failure);
    }
  }
  if (text.empty()) text = from_reader([&] { return list_file(session.files, shown, json); });
  if (session.comm.rank() != 0) return "";
  if (json) return text;
  session.log.data(text);
  return "";
}

}  // namespace unshard
