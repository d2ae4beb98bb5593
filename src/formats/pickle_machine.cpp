// How nodes are made, kept on the stack and remembered.
//
// Everything that the input states is checked before use: lengths against what is left of it, memo indexes against its size (a pickler
// numbers entries as it goes, so an honest index is below the number of bytes). Each opcode makes at most one node and takes at least one
// byte.
#include "formats/pickle_machine.h"

#include <algorithm>
#include <cstring>

#include "formats/pickle_text.h"

namespace unshard::pickle {

Machine::Machine(std::span<const std::byte> input, const std::string& label, Classify classify)
    : input_(input), label_(label), classify_(classify), tree_(input.size()) {
  small_ = static_cast<Node*>(tree_.arena_.take(256 * sizeof(Node)));
  for (std::int64_t value = 0; value < 256; ++value) {
    small_[value].kind = Kind::integer;
    small_[value].integer = value;
    small_[value].extra = nullptr;
  }
  none_ = make(Kind::none);
  true_ = make(Kind::boolean);
  true_->integer = 1;
  false_ = make(Kind::boolean);
  false_->integer = 0;
  empty_tuple_ = make_items(Kind::tuple, {});
  stack_.reserve(256);
}

Tree Machine::run() {
  static const auto table = dispatch_table();
  while (!stopped_) {
    opcode_at_ = at_;
    const auto code = static_cast<unsigned char>(*take(1));
    const auto operation = table[code];
    if (operation == nullptr) fail("unknown opcode " + std::to_string(code));
    (this->*operation)();
  }
  tree_.root_ = pop();
  tree_.size_bytes_ = at_;
  return std::move(tree_);
}

void Machine::fail(const std::string& what) const {
  throw Error(ErrorCode::bad_input,
              label_ + ": pickle is damaged at byte " + std::to_string(opcode_at_) + " of " + std::to_string(input_.size()) + ": " + what);
}

void Machine::truncated() const {
  throw Truncated(ErrorCode::bad_input, label_ + ": pickle is truncated: an item at byte " + std::to_string(opcode_at_) +
                                            " goes beyond its " + std::to_string(input_.size()) + " bytes");
}

std::uint64_t Machine::length(unsigned size_bytes) {
  if (size_bytes == 1) return number<std::uint8_t>();
  return size_bytes == 2 ? number<std::uint16_t>() : size_bytes == 4 ? number<std::uint32_t>() : number<std::uint64_t>();
}

std::string_view Machine::line() {
  const char* from = reinterpret_cast<const char*>(input_.data()) + at_;
  const void* end = left() == 0 ? nullptr : std::memchr(from, '\n', left());
  if (end == nullptr) truncated();
  const auto size = static_cast<std::size_t>(static_cast<const char*>(end) - from);
  at_ += size + 1;
  return {from, size};
}

std::span<Node* const> Machine::above_mark() const {
  if (marks_.empty()) fail("no mark on the stack");
  return std::span<Node* const>(stack_).subspan(marks_.back());
}

void Machine::drop_to_mark() {
  stack_.resize(marks_.back());
  marks_.pop_back();
}

void Machine::remember(std::uint64_t index) {
  if (index >= input_.size()) fail("memo entry " + std::to_string(index) + " in a pickle of so few bytes");
  const auto at = static_cast<std::size_t>(index);
  if (at >= memo_.size()) memo_.resize(std::min(input_.size(), std::max(at + 1, 2 * memo_.size())), nullptr);
  if (memo_[at] == nullptr) ++remembered_;
  memo_[at] = top();
}

void Machine::recall(std::uint64_t index) {
  if (index >= memo_.size() || memo_[static_cast<std::size_t>(index)] == nullptr)
    fail("memo entry " + std::to_string(index) + " was never made");
  push(memo_[static_cast<std::size_t>(index)]);
}

Node* Machine::make_text(Kind kind, std::string_view text) {
  Node* node = make(kind);
  node->text = {text.data(), text.size()};
  return node;
}

Node* Machine::make_copy(const std::string& text) {
  char* copy = static_cast<char*>(tree_.arena_.take(text.size()));
  std::copy(text.begin(), text.end(), copy);
  return make_text(Kind::text, {copy, text.size()});
}

Node* Machine::make_integer(std::int64_t value) {
  if (value >= 0 && value < 256) return small_ + value;
  Node* node = make(Kind::integer);
  node->integer = value;
  return node;
}

Node* Machine::make_items(Kind kind, std::span<Node* const> items) {
  Node* node = make(kind);
  node->items = {};
  append(node->items, items);
  return node;
}

Node* Machine::make_call(Kind kind, Node* callee, Node* args) {
  Node* node = make(kind);
  node->made = {callee, args};
  return node;
}

Node* Machine::make_global(std::string_view module, std::string_view name) {
  if (protocol_ < 3) {
    const QualifiedName now = python3_name(module, name);
    module = now.module;
    name = now.name;
  }
  auto [place, is_new] = tree_.globals_.try_emplace({module, name}, Global{module, name, 0});
  if (is_new && classify_ != nullptr) place->second.tag = classify_(module, name);
  Node* node = make(Kind::global);
  node->global = &place->second;
  return node;
}

void Machine::append(Items& items, std::span<Node* const> more) {
  if (more.empty()) return;
  const std::uint64_t wanted = std::uint64_t{items.count} + more.size();
  if (wanted > items.capacity) {
    const std::uint64_t capacity = items.count == 0 ? wanted : std::max(wanted, std::uint64_t{items.capacity} * 2);
    if (capacity > UINT32_MAX) fail("more than 2^32 items in one value");
    auto** data = static_cast<const Node**>(tree_.arena_.take(static_cast<std::size_t>(capacity) * sizeof(const Node*)));
    std::copy_n(items.data, items.count, data);
    items.data = data;
    items.capacity = static_cast<std::uint32_t>(capacity);
  }
  std::copy(more.begin(), more.end(), items.data + items.count);
  items.count = static_cast<std::uint32_t>(wanted);
}

Extra& Machine::extra_of(Node* node) {
  const bool may_have =
      node->kind == Kind::call || node->kind == Kind::object || node->kind == Kind::persistent || node->kind == Kind::extension;
  if (!may_have) fail(describe(*node) + " can't be changed");
  if (node->extra == nullptr) {
    node->extra = static_cast<Extra*>(tree_.arena_.take(sizeof(Extra)));
    *node->extra = {};
  }
  return *node->extra;
}

void Machine::append_to(Node* target, std::span<Node* const> more) {
  append(target->kind == Kind::list || target->kind == Kind::set ? target->items : extra_of(target).appended, more);
}

void Machine::set_items(Node* target, std::span<Node* const> pairs) {
  if (pairs.size() % 2 != 0) fail("a key without a value");
  append(target->kind == Kind::dict ? target->items : extra_of(target).pairs, pairs);
}

void Machine::push_long(std::uint64_t size_bytes) {
  const char* from = take(size_bytes);
  if (size_bytes > 8) {
    push(make(Kind::big_integer));
    return;
  }
  std::uint64_t value = 0;
  for (std::uint64_t i = size_bytes; i-- > 0;) value = (value << 8) | static_cast<unsigned char>(from[i]);
  if (size_bytes > 0 && size_bytes < 8 && (from[size_bytes - 1] & 0x80) != 0) value |= ~std::uint64_t{0} << (8 * size_bytes);
  push(make_integer(static_cast<std::int64_t>(value)));
}

Tree read(std::span<const std::byte> input, const std::string& label, Classify classify) {
  return Machine(input, label, classify).run();
}

}  // namespace unshard::pickle
