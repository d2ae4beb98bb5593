// The pickle (torch/distributed/checkpoint/metadata.py, filesystem.py, default_planner.py; protocol 4 or 5, written by pickle.dump):
//
//   Metadata
//     state_dict_metadata   {name: TensorStorageMetadata(properties (dtype, …), size, chunks [ChunkStorageMetadata(offsets, sizes)])
//                                  | BytesStorageMetadata}
//     planner_data          {name: (key, key, …)}: the path of each name, or None
//     storage_data          {MetadataIndex(fqn, offset, index): _StorageInfo(relative_path, offset, length, transform_descriptors)}
//
// An index is told apart by fqn and offset only. Fields that are None may be absent. Megatron-core 0.15 writes a subclass, MCoreMetadata,
// and all of its releases add attributes that say nothing of where bytes lie.
#include "formats/dcp_metadata.h"

#include <algorithm>
#include <unordered_map>
#include <unordered_set>

#include "checked_math.h"
#include "formats/pickle_state.h"
#include "formats/torch_names.h"
#include "formats/torch_rebuild.h"
#include "names.h"
#include "unshard/error.h"

namespace unshard {

using pickle::attribute;
using pickle::Kind;
using pickle::Node;

namespace {

constexpr std::uint64_t most_bytes = std::uint64_t{4} << 30;

class MetadataReader {
 public:
  MetadataReader(const Node& root, const std::string& label) : root_(root), label_(label) {}

  std::vector<DcpEntry> run() {
    if (made_by(root_) != TorchName::dcp_metadata) fail("is no metadata of torch.distributed.checkpoint but " + pickle::describe(root_));
    read_entries(dict("state_dict_metadata"));
    read_paths(attribute(root_, "planner_data"));
    read_storage(dict("storage_data"));
    for (std::size_t i = 0; i < entries_.size(); ++i) require_items(i);
    return std::move(entries_);
  }

 private:
  [[noreturn]] void fail(const std::string& what) const { throw Error(ErrorCode::bad_input, label_ + ": " + what); }

  const Node& dict(const char* name) const {
    const Node* found = attribute(root_, name);
    if (found == nullptr || found->kind != Kind::dict) fail(std::string("has no dictionary '") + name + "'");
    return *found;
  }

  /// `read`, with what goes wrong ascribed to the entry.
  template <class Read>
  void of_entry(DcpEntry& entry, Read&& read) const {
    try {
      read();
    } catch (const Unreadable& why) {
      entry.problem = why.reason();
    } catch (const Error& error) {
      throw Error(error.code(), label_ + ": '" + printable(entry.name) + "': " + error.what());
    }
  }

  void read_entries(const Node& entries) {
    const auto pairs = entries.pairs();
    entries_.reserve(pairs.size() / 2);
    for (std::size_t i = 0; i + 1 < pairs.size(); i += 2) {
      if (!pairs[i]->is_text()) fail("a name is " + pickle::describe(*pairs[i]) + ", expected a text");
      const std::string name(pairs[i]->view());
      if (!ids_.emplace(name, entries_.size()).second) fail("names '" + printable(name) + "' twice");
      entries_.emplace_back();
      entries_.back().name = name;
      entries_.back().path = {name};
      of_entry(entries_.back(), [&] { read_entry(*pairs[i + 1], entries_.back()); });
    }
  }

  void read_entry(const Node& node, DcpEntry& entry) const {
    const TorchName kind = made_by(node);
    if (kind == TorchName::dcp_bytes) {
      entry.items.emplace_back();
      return;
    }
    if (kind != TorchName::dcp_tensor)
      throw Error(ErrorCode::bad_input, "is " + pickle::describe(node) + ", expected the metadata of a tensor or of bytes");
    entry.is_tensor = true;
    read_dtype(attribute(node, "properties"), entry);
    const Node* size = attribute(node, "size");
    const Node* chunks = attribute(node, "chunks");
    if (size == nullptr || chunks == nullptr) throw Error(ErrorCode::bad_input, "has no size or no list of chunks");
    entry.shape = shape_of(*size, "its size");
    static_cast<void>(volume(entry.shape));
    std::unordered_set<std::string> known;  // some writers list the pieces of replicas again
    for (const Node* chunk : chunks->elements()) {
      DcpItem item = read_chunk(*chunk, entry.shape);
      if (chunks->elements().size() > 1 && !known.insert(to_string(item.box)).second) continue;
      entry.items.push_back(std::move(item));
    }
  }

  /// The first of the properties' five fields.
  static void read_dtype(const Node* properties, DcpEntry& entry) {
    const Node* state = properties == nullptr ? nullptr : properties->state();
    const Node* dtype = state == nullptr ? nullptr : pickle::in_state(state, "dtype");
    if (dtype == nullptr && state != nullptr && !state->elements().empty()) dtype = state->elements().front();
    if (dtype == nullptr) throw Error(ErrorCode::bad_input, "states no element type");
    if (torch_name(dtype->tag()) == TorchName::dtype) {
      entry.dtype = torch_dtype(dtype->tag());
      return;
    }
    entry.problem = "its element type is " + pickle::describe(*dtype) + ", which has no counterpart";
  }

  static DcpItem read_chunk(const Node& chunk, const Shape& shape) {
    const Node* offsets = attribute(chunk, "offsets");
    const Node* sizes = attribute(chunk, "sizes");
    if (made_by(chunk) != TorchName::dcp_chunk || offsets == nullptr || sizes == nullptr)
      throw Error(ErrorCode::bad_input, "has a chunk that is " + pickle::describe(chunk));
    DcpItem item;
    item.box = {shape_of(*offsets, "a chunk's offset"), shape_of(*sizes, "a chunk's size")};
    if (item.box.offset.size() != shape.size() || item.box.extent.size() != shape.size() || !inside(item.box, shape)) {
      throw Error(ErrorCode::bad_input, "its chunk at " + to_string(item.box.offset) + " of size " + to_string(item.box.extent) +
                                            " is not inside " + to_string(shape));
    }
    return item;
  }

  /// Paths that are none, or that are not those of their names, are left: the name is then one key.
  void read_paths(const Node* paths) {
    if (paths == nullptr) return;
    const auto pairs = paths->pairs();
    for (std::size_t i = 0; i + 1 < pairs.size(); i += 2) {
      const auto entry = ids_.find(std::string(pairs[i]->view()));
      if (entry == ids_.end() || pairs[i + 1]->elements().empty()) continue;
      std::vector<std::string> path;
      std::string joined;
      for (const Node* key : pairs[i + 1]->elements()) {
        path.push_back(key->is_text() ? std::string(key->view()) : pickle::describe(*key));
        joined += (joined.empty() && path.size() == 1 ? "" : ".") + path.back();
      }
      if (joined == entry->first) entries_[entry->second].path = std::move(path);
    }
  }

  /// Which item of an entry lies at an offset.
  DcpItem* item_at(std::size_t id, const Node* offset) {
    DcpEntry& entry = entries_[id];
    if (offset == nullptr || offset->kind == Kind::none) return entry.items.size() == 1 ? &entry.items.front() : nullptr;
    const Shape at = shape_of(*offset, "an item's offset");
    if (entry.items.size() <= 8) {
      const auto found = std::find_if(entry.items.begin(), entry.items.end(), [&](const DcpItem& item) { return item.box.offset == at; });
      return found == entry.items.end() ? nullptr : &*found;
    }
    auto& places = places_[id];
    if (places.empty()) {
      for (std::size_t i = 0; i < entry.items.size(); ++i) places.emplace(to_string(entry.items[i].box.offset), i);
    }
    const auto found = places.find(to_string(at));
    return found == places.end() ? nullptr : &entry.items[found->second];
  }

  void read_storage(const Node& storage) {
    const auto pairs = storage.pairs();
    for (std::size_t i = 0; i + 1 < pairs.size(); i += 2) {
      const Node* fqn = attribute(*pairs[i], "fqn");
      if (made_by(*pairs[i]) != TorchName::dcp_index || fqn == nullptr || !fqn->is_text())
        fail("its storage_data has a key that is " + pickle::describe(*pairs[i]) + ", expected an index");
      const std::string name(fqn->view());
      const auto id = ids_.find(name);
      if (id == ids_.end()) fail("its storage_data places '" + printable(name) + "', which its state dict does not name");
      DcpEntry& entry = entries_[id->second];
      if (!entry.problem.empty()) continue;
      of_entry(entry, [&] {
        DcpItem* item = item_at(id->second, attribute(*pairs[i], "offset"));
        if (item == nullptr) throw Error(ErrorCode::bad_input, "an item is placed that is none of its chunks");
        read_place(*pairs[i + 1], *item);
      });
    }
  }

  static void read_place(const Node& node, DcpItem& item) {
    const Node* path = attribute(node, "relative_path");
    const Node* offset = attribute(node, "offset");
    const Node* length = attribute(node, "length");
    if (made_by(node) != TorchName::dcp_storage || path == nullptr || !path->is_text() || offset == nullptr || length == nullptr)
      throw Error(ErrorCode::bad_input, "its place is " + pickle::describe(node) + ", expected a file and a range");
    if (!item.file.empty()) throw Error(ErrorCode::bad_input, "a piece of it is placed twice");
    item.file = std::string(path->view());
    if (!stays_below(item.file))
      throw Error(ErrorCode::bad_input, "its file '" + printable(item.file) + "' is not in the checkpoint's folder");
    item.position = natural(*offset, "its place in the file");
    item.size_bytes = natural(*length, "its length in the file");
    if (!checked_add(item.position, item.size_bytes)) throw Error(ErrorCode::bad_input, "its place in the file is impossible");
    const Node* transforms = attribute(node, "transform_descriptors");
    if (transforms == nullptr) return;
    for (const Node* transform : transforms->elements()) {
      item.transform +=
          (item.transform.empty() ? "" : ", ") + (transform->is_text() ? std::string(transform->view()) : pickle::describe(*transform));
    }
  }

  /// Whether a relative path leads to something below the folder that it starts in.
  static bool stays_below(const std::string& path) {
    if (path.empty() || path.find('\0') != std::string::npos) return false;
    for (std::size_t begin = 0; begin <= path.size();) {
      const std::size_t end = std::min(path.find('/', begin), path.size());
      const std::string_view element = std::string_view(path).substr(begin, end - begin);
      if (element.empty() || element == "." || element == "..") return false;
      begin = end + 1;
    }
    return true;
  }

  /// Every piece with elements lies somewhere.
  void require_items(std::size_t id) {
    DcpEntry& entry = entries_[id];
    for (const DcpItem& item : entry.items) {
      if (!item.file.empty() || !entry.problem.empty()) continue;
      if (entry.is_tensor && volume(item.box.extent) == 0) continue;
      entry.problem = (entry.is_tensor ? "its piece " + to_string(item.box) : std::string("it")) + " is in no file";
    }
  }

  const Node& root_;
  const std::string& label_;
  std::vector<DcpEntry> entries_;
  std::unordered_map<std::string, std::size_t> ids_;
  std::unordered_map<std::size_t, std::unordered_map<std::string, std::size_t>> places_;  ///< of entries with many items, by offset
};

}  // namespace

std::vector<DcpEntry> read_dcp_metadata(File& file, const std::string& label) {
  const std::string name = printable(label, 4096);
  if (file.size() > most_bytes) {
    throw Error(ErrorCode::unsupported,
                name + ": has " + std::to_string(file.size()) + " bytes, at most " + std::to_string(most_bytes) + " are supported");
  }
  std::vector<std::byte> bytes(static_cast<std::size_t>(file.size()));
  file.read_at(0, bytes);
  const pickle::Tree tree = pickle::read(bytes, name, classify_torch_name);
  if (tree.size_bytes() != bytes.size())
    throw Error(ErrorCode::bad_input, name + ": has " + std::to_string(bytes.size() - tree.size_bytes()) + " bytes behind its pickle");
  return MetadataReader(tree.root(), name).run();
}

}  // namespace unshard
