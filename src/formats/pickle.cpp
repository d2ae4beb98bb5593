// The nodes of pickle.h: access and naming. The machine that makes them is in pickle_machine.h.
#include "formats/pickle.h"

#include <algorithm>

namespace unshard::pickle {

void Arena::add_block(std::size_t least_bytes) {
  constexpr std::size_t most_block_bytes = std::size_t{4} << 20;
  const std::size_t block = std::max(next_bytes_, least_bytes);
  blocks_.push_back(std::make_unique_for_overwrite<std::byte[]>(block));
  at_ = blocks_.back().get();
  left_ = block;
  next_bytes_ = std::min(most_block_bytes, next_bytes_ * 2);
}

Tree::Tree(std::size_t input_bytes) : arena_(std::clamp<std::size_t>(input_bytes * 8, std::size_t{16} << 10, std::size_t{1} << 20)) {}

namespace {

std::string name_of_callee(const Node* callee) {
  if (callee == nullptr) return "unnamed";
  if (callee->kind != Kind::global) return "the result of another call";
  return printable(std::string(callee->global->module) + "." + std::string(callee->global->name));
}

}  // namespace

std::string describe(const Node& node) {
  switch (node.kind) {
    case Kind::none:
      return "None";
    case Kind::boolean:
      return node.integer != 0 ? "True" : "False";
    case Kind::integer:
      return std::to_string(node.integer);
    case Kind::big_integer:
      return "an integer of more than 64 bits";
    case Kind::real:
      return "a float";
    case Kind::text:
      return "a string";
    case Kind::bytes:
      return "bytes";
    case Kind::global:
      return name_of_callee(&node);
    case Kind::tuple:
      return "a tuple";
    case Kind::list:
      return "a list";
    case Kind::set:
      return "a set";
    case Kind::dict:
      return "a dict";
    case Kind::call:
      return name_of_callee(node.callee()) + " call";
    case Kind::object:
      return name_of_callee(node.callee());
    case Kind::persistent:
      return "an object kept outside the pickle";
    case Kind::extension:
      return "copyreg extension " + std::to_string(node.integer);
  }
  return "unknown";
}

}  // namespace unshard::pickle
