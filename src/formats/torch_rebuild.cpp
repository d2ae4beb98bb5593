// Arguments of the rebuild functions: torch/_utils.py and torch/_tensor.py (_reduce_ex_internal). Offsets and strides count elements of the
// tensor's own type.
#include "formats/torch_rebuild.h"

#include <algorithm>

#include "checked_math.h"
#include "formats/torch_legacy.h"
#include "unshard/error.h"

namespace unshard {

using pickle::Kind;
using pickle::Node;

namespace {

[[noreturn]] void refuse(const std::string& what) {
  throw Error(ErrorCode::bad_input, what);
}

void require_args(std::span<const Node* const> args, std::size_t least, const char* function) {
  if (args.size() < least)
    refuse(std::string(function) + " has " + std::to_string(args.size()) + " arguments, expected " + std::to_string(least));
}

/// Lazily conjugated or negated data: the flags that are true.
void require_no_flags(const Node& metadata) {
  const auto pairs = metadata.pairs();
  for (std::size_t i = 0; i + 1 < pairs.size(); i += 2) {
    if (pairs[i + 1]->kind == Kind::boolean && pairs[i + 1]->integer != 0) {
      throw Unreadable("its data is stored with the flag '" + printable(pairs[i]->view()) +
                       "', which is to be applied on reading; save it resolved (resolve_conj, resolve_neg)");
    }
  }
}

DType dtype_of(const Node& node) {
  if (torch_name(node.tag()) == TorchName::dtype) return torch_dtype(node.tag());
  if (node.kind == Kind::global) throw Unreadable("its element type is " + pickle::describe(node) + ", which has no counterpart");
  refuse("its element type is " + pickle::describe(node));
}

}  // namespace

Shape shape_of(const Node& node, const char* what) {
  const Node* list = &node;
  if (made_by(node) == TorchName::size && node.args().size() == 1) list = node.args()[0];
  if (list->kind != Kind::tuple && list->kind != Kind::list)
    refuse(std::string(what) + " is " + pickle::describe(*list) + ", expected a tuple");
  const auto items = list->elements();
  if (items.size() > max_rank)
    throw Unreadable("it has " + std::to_string(items.size()) + " dimensions, at most " + std::to_string(max_rank) + " are supported");
  Shape shape;
  for (const Node* item : items) shape.push_back(natural(*item, what));
  return shape;
}

StoredTensor checked_view(const StorageRecord& record, DType dtype, std::uint64_t offset, const Shape& shape, const Shape& strides) {
  if (shape.size() != strides.size())
    refuse("its shape " + to_string(shape) + " and strides " + to_string(strides) + " have different lengths");
  StoredTensor tensor{dtype, shape, strides, record.position, record.position, record.size_bytes, record.crc, record.has_crc, false};
  if (volume(shape) == 0) return tensor;
  std::optional<std::uint64_t> last = offset;
  for (std::size_t i = 0; i < shape.size(); ++i) {
    const auto step = checked_multiply(shape[i] - 1, strides[i]);
    last = last && step ? checked_add(*last, *step) : std::nullopt;
  }
  const std::uint64_t available = record.size_bytes / info(dtype).size_bytes;
  if (!last || *last >= available) {
    refuse("a view of shape " + to_string(shape) + ", strides " + to_string(strides) + " and offset " + std::to_string(offset) +
           " goes beyond its storage of " + std::to_string(available) + " elements");
  }
  tensor.position = record.position + offset * info(dtype).size_bytes;
  return tensor;
}

bool TorchRebuilder::is_tensor(const Node& node) {
  const TorchName name = made_by(node);
  return node.kind == Kind::call && name >= TorchName::tensor_v1 && name <= TorchName::quantised_tensor;
}

void TorchRebuilder::unwrap_once(Rebuild& call) {
  if (call.function == TorchName::from_type) {
    require_args(call.args, 4, "_rebuild_from_type");
    const auto outer = call.args;
    call = {torch_name(outer[0]->tag()), outer[2]->elements(), outer[1], outer[3], call.dtype};
    return;
  }
  const bool states_dtype = call.function == TorchName::device_from_cpu;
  require_args(call.args, states_dtype ? 2 : 1, "a rebuild function");
  if (states_dtype) call.dtype = call.args[1];
  const Node& inner = *call.args[0];
  call.function = made_by(inner);
  call.args = inner.args();
}

TorchRebuilder::Rebuild TorchRebuilder::unwrapped(const Node& node) {
  constexpr int most_wrappers = 16;
  Rebuild call{made_by(node), node.args(), nullptr, node.state(), nullptr};
  for (int depth = 0; depth < most_wrappers; ++depth) {
    const bool wrapper =
        call.function == TorchName::parameter || call.function == TorchName::from_type || call.function == TorchName::device_from_cpu;
    if (!wrapper) return call;
    unwrap_once(call);
  }
  refuse("it is wrapped more than " + std::to_string(most_wrappers) + " times");
}

void TorchRebuilder::rebuild(const Node& node, TorchEntry& entry) {
  unknown_class_.clear();
  const Rebuild call = unwrapped(node);
  if (call.function == TorchName::wrapper_subclass) {
    require_args(call.args, 4, "_rebuild_wrapper_subclass");
    const Node& type = call.type != nullptr ? *call.type : *call.args[0];
    const TorchName name = torch_name(type.tag());
    if (name != TorchName::dtensor && name != TorchName::sharded_tensor) {
      throw Unreadable("it is a " + pickle::describe(type) +
                       ", a tensor subclass whose data is in parts that only its own code can put together");
    }
    if (call.state == nullptr) refuse("a " + pickle::describe(type) + " without a state");
    return name == TorchName::dtensor ? dtensor(call, entry) : sharded_tensor(call, entry);
  }
  if (call.type != nullptr && torch_name(call.type->tag()) == TorchName::other) unknown_class_ = pickle::describe(*call.type);
  entry.kind = TorchEntry::Kind::tensor;
  entry.tensor = plain_tensor(call);
}

StoredTensor TorchRebuilder::plain_tensor(const Node& node) const {
  return plain_tensor(unwrapped(node));
}

StoredTensor TorchRebuilder::plain_tensor(const Rebuild& call) const {
  switch (call.function) {
    case TorchName::tensor_v1:
    case TorchName::tensor_v2:
    case TorchName::tensor_v3:
      break;
    case TorchName::meta_tensor:
      throw Unreadable("it is a meta tensor: the file holds its shape and no data");
    case TorchName::sparse_tensor:
      throw Unreadable("it is a sparse tensor; save it dense (to_dense)");
    case TorchName::nested_tensor:
      throw Unreadable("it is a nested tensor");
    case TorchName::quantised_tensor:
      throw Unreadable("it is a tensor of torch's quantised types; save it dequantised (dequantize)");
    case TorchName::device_from_numpy:
      throw Unreadable("it was saved through numpy by a device without storages; save it from the CPU");
    case TorchName::wrapper_subclass:
      throw Unreadable("its data is in a " + (call.type != nullptr ? pickle::describe(*call.type) : "tensor subclass") +
                       ", whose parts only its own code can put together");
    default:
      throw Unreadable("it is the result of a call that is no known rebuild function");
  }
  const bool states_dtype = call.function == TorchName::tensor_v3;
  require_args(call.args, states_dtype ? 7 : 4, "a rebuild function");
  const std::size_t metadata_at = states_dtype ? 7 : 6;
  if (call.args.size() > metadata_at) require_no_flags(*call.args[metadata_at]);
  const Storage storage = storage_of(*call.args[0]);
  const DType dtype = states_dtype ? dtype_of(*call.args[6]) : storage.dtype;
  const std::uint64_t offset = natural(*call.args[1], "its offset");
  StoredTensor tensor =
      checked_view(storage.record, dtype, offset, shape_of(*call.args[2], "its shape"), shape_of(*call.args[3], "its strides"));
  if (call.dtype != nullptr && dtype_of(*call.dtype) != dtype) {
    throw Unreadable("it is stored as " + std::string(info(dtype).name) + " and to be read as " + pickle::describe(*call.dtype));
  }
  tensor.big_endian = pickled_.big_endian;
  return tensor;
}

Storage TorchRebuilder::storage_of(const Node& node) const {
  if (made_by(node) == TorchName::load_from_bytes) return storage_in_bytes(node);
  if (node.kind != Kind::persistent) refuse("its storage is " + pickle::describe(node));
  const StorageId id = parse_storage_id(*node.callee());
  const StorageRecord* found = pickled_.storages.find(id.key);
  if (found == nullptr) refuse("its storage '" + printable(id.key) + "' is not in the file");
  Storage storage{*found, id.dtype, id.untyped};
  const auto size_bytes = checked_multiply(id.elements, id.element_bytes());
  if (!size_bytes || *size_bytes != found->size_bytes) {
    refuse("its storage '" + printable(id.key) + "' should have " + std::to_string(id.elements) + " elements of " +
           std::to_string(id.element_bytes()) + " bytes, its record has " + std::to_string(found->size_bytes) + " bytes");
  }
  if (id.has_view) {
    if (!range_fits(id.view_offset, id.view_elements, id.elements))
      refuse("a part of storage '" + printable(id.key) + "' goes beyond its " + std::to_string(id.elements) + " elements");
    storage.record.position += id.view_offset * id.element_bytes();
    storage.record.size_bytes = id.view_elements * id.element_bytes();
    storage.record.has_crc = false;
  }
  return storage;
}

Storage TorchRebuilder::storage_in_bytes(const Node& node) const {
  const Node* bytes = node.args().size() == 1 ? node.args()[0] : nullptr;
  if (bytes != nullptr && made_by(*bytes) == TorchName::encode) {
    throw Unreadable("its data lies inside a text (plain pickle, protocol 2); save it with torch.save");
  }
  if (bytes == nullptr || bytes->kind != Kind::bytes) refuse("its storage is no bytes");
  const std::string_view view = bytes->view();
  const auto at = static_cast<std::uint64_t>(view.data() - reinterpret_cast<const char*>(pickled_.buffer.data()));
  return storage_in_legacy_stream(std::as_bytes(std::span(view.data(), view.size())), pickled_.buffer_position + at);
}

}  // namespace unshard
