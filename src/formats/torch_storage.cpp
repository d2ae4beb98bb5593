#include "formats/torch_storage.h"

#include <algorithm>

#include "formats/torch_names.h"
#include "formats/zip_directory.h"
#include "unshard/error.h"

namespace unshard {

using pickle::Kind;
using pickle::Node;

StorageTable::StorageTable(std::vector<StorageRecord> records) : records_(std::move(records)) {
  const auto order = [](const StorageRecord& a, const StorageRecord& b) { return ZipDirectory::before(a.key, b.key); };
  if (!std::is_sorted(records_.begin(), records_.end(), order)) std::sort(records_.begin(), records_.end(), order);
}

const StorageRecord* StorageTable::find(std::string_view key) const {
  const auto place = std::lower_bound(records_.begin(), records_.end(), key, [](const StorageRecord& record, std::string_view wanted) {
    return ZipDirectory::before(record.key, wanted);
  });
  return place != records_.end() && place->key == key ? &*place : nullptr;
}

std::uint64_t natural(const Node& node, const char* what) {
  if (node.kind != Kind::integer) throw Error(ErrorCode::bad_input, std::string(what) + ": " + pickle::describe(node) + " is no number");
  if (node.integer < 0) throw Error(ErrorCode::bad_input, std::string(what) + ": " + std::to_string(node.integer) + " is negative");
  return static_cast<std::uint64_t>(node.integer);
}

StorageId parse_storage_id(const Node& id) {
  const auto items = id.elements();
  if (id.kind != Kind::tuple || items.size() < 5 || items.size() > 6 || items[0]->view() != "storage" || items[2]->kind != Kind::text) {
    throw Error(ErrorCode::bad_input, "its storage has no id of the form ('storage', type, key, location, elements)");
  }
  StorageId parsed;
  const std::uint16_t tag = items[1]->tag();
  switch (torch_name(tag)) {
    case TorchName::storage:
      parsed.dtype = torch_dtype(tag);
      break;
    case TorchName::untyped_storage:
      parsed.untyped = true;
      break;
    case TorchName::foreign_storage:
      throw Unreadable("its storage is a " + pickle::describe(*items[1]) + ", an element type without a counterpart");
    default:
      throw Error(ErrorCode::bad_input, "its storage is of type " + pickle::describe(*items[1]) + ", which is no storage of torch");
  }
  parsed.key = items[2]->view();
  parsed.elements = natural(*items[4], "the size of its storage");
  if (items.size() == 6 && items[5]->kind != Kind::none) {
    const auto view = items[5]->elements();
    if (view.size() != 3)
      throw Error(ErrorCode::bad_input, "the view of its storage is " + pickle::describe(*items[5]) + ", expected (key, offset, elements)");
    parsed.has_view = true;
    parsed.view_offset = natural(*view[1], "the offset of its storage");
    parsed.view_elements = natural(*view[2], "the size of its storage");
  }
  return parsed;
}

}  // namespace unshard
