// The nodes of pickle.h: access and naming. The machine that makes them is in pickle_machine.cpp.
#include "formats/pickle.h"

#include <algorithm>

namespace unshard::pickle {

void* Arena::take(std::size_t bytes) {
  bytes = (bytes + 7) & ~std::size_t{7};
  if (left_ < bytes) {
    constexpr std::size_t most_block_bytes = std::size_t{4} << 20;
    const std::size_t block = std::max(next_bytes_, bytes);
    blocks_.push_back(std::make_unique_for_overwrite<std::byte[]>(block));
    at_ = blocks_.back().get();
    left_ = block;
    next_bytes_ = std::min(most_block_bytes, next_bytes_ * 2);
  }
  void* taken = at_;
  at_ += bytes;
  left_ -= bytes;
  return taken;
}

std::string_view Node::view() const {
  if (kind != Kind::text && kind != Kind::bytes) return {};
  return {text.data, static_cast<std::size_t>(text.size)};
}

std::span<const Node* const> Node::elements() const {
  if (kind != Kind::tuple && kind != Kind::list && kind != Kind::set) return {};
  return items.all();
}

std::span<const Node* const> Node::pairs() const {
  if (kind == Kind::dict) return items.all();
  if ((kind == Kind::call || kind == Kind::object) && extra != nullptr) return extra->pairs.all();
  return {};
}

std::span<const Node* const> Node::appended() const {
  if ((kind != Kind::call && kind != Kind::object) || extra == nullptr) return {};
  return extra->appended.all();
}

const Node* Node::callee() const {
  return kind == Kind::call || kind == Kind::object || kind == Kind::persistent ? made.callee : nullptr;
}

std::span<const Node* const> Node::args() const {
  if ((kind != Kind::call && kind != Kind::object) || made.args == nullptr) return {};
  return made.args->elements();
}

const Node* Node::state() const {
  const bool may_have = kind == Kind::call || kind == Kind::object || kind == Kind::persistent || kind == Kind::extension;
  return may_have && extra != nullptr ? extra->state : nullptr;
}

std::uint16_t Node::tag() const {
  return kind == Kind::global ? global->tag : std::uint16_t{0};
}

std::uint16_t Node::callee_tag() const {
  return (kind == Kind::call || kind == Kind::object) && made.callee != nullptr ? made.callee->tag() : std::uint16_t{0};
}

const Node* Node::find(std::string_view key) const {
  const auto all = pairs();
  for (std::size_t i = all.size(); i >= 2; i -= 2) {
    if (all[i - 2]->is_text() && all[i - 2]->view() == key) return all[i - 1];
  }
  return nullptr;
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
