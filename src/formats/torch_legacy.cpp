// torch/serialization.py (_legacy_save, _legacy_load), torch/csrc/serialization.cpp (THPStorage_writeFileRaw). Without an index, one after
// another:
//
//   pickle of the magic number 0x1950a86a20f9469cfc6c, pickle of 1001, pickle of {protocol_version, little_endian, type_sizes},
//   pickle of the object, pickle of the sorted list of storage keys,
//   and for each key in that order: number of elements (int64), the elements; always little-endian
//
// The size of an element is that of the storage type in the key's first persistent id, so the object must be read before the storages can
// be found.
#include "formats/torch_legacy.h"

#include <algorithm>
#include <array>
#include <optional>

#include "checked_math.h"
#include "formats/little_endian.h"
#include "formats/torch_names.h"
#include "unshard/error.h"

namespace unshard {

using pickle::Kind;
using pickle::Node;

namespace {

constexpr std::array<unsigned char, 15> magic{0x80, 0x02, 0x8A, 0x0A, 0x6C, 0xFC, 0x9C, 0x46, 0xF9, 0x20, 0x6A, 0xA8, 0x50, 0x19, 0x2E};

[[noreturn]] void fail(const std::string& label, const std::string& what) {
  throw Error(ErrorCode::bad_input, label + ": " + what);
}

/// The five pickles.
struct Pickles {
  pickle::Tree object;
  pickle::Tree keys;
  std::uint64_t size_bytes = 0;
};

Pickles read_pickles(std::span<const std::byte> bytes, const std::string& label) {
  std::size_t at = magic.size();
  const auto next = [&] {
    pickle::Tree tree = pickle::read(bytes.subspan(std::min(at, bytes.size())), label, classify_torch_name);
    at += tree.size_bytes();
    return tree;
  };
  const pickle::Tree version = next();
  if (version.root().kind != Kind::integer || version.root().integer != 1001)
    fail(label, "legacy torch.save stream of version " + pickle::describe(version.root()) + ", expected 1001");
  const pickle::Tree system = next();
  pickle::Tree object = next();
  pickle::Tree keys = next();
  return {std::move(object), std::move(keys), at};
}

/// Bytes of an element, by storage key.
class ElementSizes {
 public:
  ElementSizes(const pickle::Tree& object, const std::string& label) {
    for (const Node* node : object.persistent()) {
      const auto id = node->callee()->elements();
      if (!id.empty() && id[0]->view() == "module") continue;
      try {
        const StorageId parsed = parse_storage_id(*node->callee());
        sizes_.push_back({parsed.key, parsed.element_bytes()});
      } catch (const Error& error) {
        fail(label, std::string("of one of its tensors, ") + error.what());
      }
    }
    std::stable_sort(sizes_.begin(), sizes_.end(), [](const Row& a, const Row& b) { return a.key < b.key; });
  }
  /// As the key's first id says; none for a key without one.
  [[nodiscard]] std::optional<std::uint64_t> find(std::string_view key) const {
    const auto place =
        std::lower_bound(sizes_.begin(), sizes_.end(), key, [](const Row& row, std::string_view wanted) { return row.key < wanted; });
    if (place == sizes_.end() || place->key != key) return std::nullopt;
    return place->bytes;
  }

 private:
  struct Row {
    std::string_view key;
    std::uint64_t bytes;
  };
  std::vector<Row> sizes_;
};

/// Finds the storages behind the pickles. `count_at(position)` reads the eight bytes there; positions count from the start of the stream.
template <class CountAt>
std::vector<StorageRecord> find_storages(const Pickles& pickles, std::uint64_t stream_bytes, const std::string& label, CountAt&& count_at) {
  const ElementSizes sizes(pickles.object, label);
  const Node& keys = pickles.keys.root();
  if (keys.kind != Kind::list) fail(label, "the list of storages is " + pickle::describe(keys));
  std::vector<StorageRecord> records;
  std::uint64_t at = pickles.size_bytes;
  for (const Node* key : keys.elements()) {
    const std::string name = "storage '" + printable(key->view()) + "'";
    const auto element_bytes = sizes.find(key->view());
    if (!key->is_text() || !element_bytes) fail(label, name + " is listed but belongs to no tensor");
    if (!range_fits(at, 8, stream_bytes))
      fail(label, "is truncated: " + name + " should begin at byte " + std::to_string(at) + " of " + std::to_string(stream_bytes));
    const std::uint64_t count = count_at(at);
    const auto size_bytes = checked_multiply(count, *element_bytes);
    if (!size_bytes || !range_fits(at + 8, *size_bytes, stream_bytes)) {
      fail(label, "is truncated: " + name + " of " + std::to_string(count) + " elements at byte " + std::to_string(at + 8) +
                      " goes beyond the " + std::to_string(stream_bytes) + " bytes");
    }
    records.push_back({key->view(), at + 8, *size_bytes, 0, false});
    at += 8 + *size_bytes;
  }
  std::sort(records.begin(), records.end(), [](const StorageRecord& a, const StorageRecord& b) { return a.key < b.key; });
  const auto twice =
      std::adjacent_find(records.begin(), records.end(), [](const StorageRecord& a, const StorageRecord& b) { return a.key == b.key; });
  if (twice != records.end()) fail(label, "storage '" + printable(twice->key) + "' is listed twice");
  return records;
}

/// Reads more and more of the file until the pickles are whole; what lies behind them is not wanted.
Pickles read_growing(File& file, const std::string& label, std::vector<std::byte>& buffer) {
  constexpr std::uint64_t first_bytes = 64 << 10, most_bytes = std::uint64_t{1} << 30;
  for (std::uint64_t bytes = first_bytes;; bytes *= 8) {
    const std::uint64_t end = std::min({bytes, file.size(), most_bytes});
    const std::size_t have = buffer.size();
    buffer.resize(static_cast<std::size_t>(end));
    file.read_at(have, std::span(buffer).subspan(have));
    try {
      return read_pickles(buffer, label);
    } catch (const pickle::Truncated&) {
      if (end == file.size() || end == most_bytes) throw;
    }
  }
}

}  // namespace

bool is_legacy_stream(std::span<const std::byte> head) {
  return head.size() >= magic.size() && std::equal(magic.begin(), magic.end(), reinterpret_cast<const unsigned char*>(head.data()));
}

PickledFile read_legacy_stream(File& file, const std::string& label) {
  PickledFile read;
  Pickles pickles = read_growing(file, label, read.buffer);
  const auto count_at = [&](std::uint64_t at) {
    std::array<std::byte, 8> count;
    file.read_at(at, count);
    return load_u64(count.data());
  };
  try {
    read.storages = StorageTable(find_storages(pickles, file.size(), label, count_at));
  } catch (const Unreadable& why) {
    throw Error(ErrorCode::unsupported, label + ": legacy torch.save stream in which " + why.reason());
  }
  read.tree = std::move(pickles.object);
  read.keys = std::move(pickles.keys);
  return read;
}

Storage storage_in_legacy_stream(std::span<const std::byte> bytes, std::uint64_t position) {
  const std::string label = "its storage";
  if (!is_legacy_stream(bytes)) fail(label, "is no torch.save stream");
  const Pickles pickles = read_pickles(bytes, label);
  const Node& root = pickles.object.root();
  if (root.kind != Kind::persistent) fail(label, "is " + pickle::describe(root));
  const StorageId id = parse_storage_id(*root.callee());
  auto records = find_storages(pickles, bytes.size(), label, [&](std::uint64_t at) { return load_u64(bytes.data() + at); });
  if (records.size() != 1 || records[0].key != id.key || id.has_view) fail(label, "is not one whole storage");
  if (records[0].size_bytes / id.element_bytes() != id.elements) fail(label, "should have " + std::to_string(id.elements) + " elements");
  records[0].position += position;
  records[0].key = {};  // the text goes with the pickles
  return {records[0], id.dtype, id.untyped};
}

}  // namespace unshard
