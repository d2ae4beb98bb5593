// The stack machine of a pickle. Opcodes and their arguments: CPython's Lib/pickletools.py; what real files use of them: torch.save writes
// protocol 2, Python's own pickle.dump protocol 4 (5 from 3.14). One row of `operations` per opcode.
//
// Everything that the input states is checked before use: lengths against what is left of it, memo indexes against its size (a pickler
// numbers entries as it goes, so an honest index is below the number of bytes). Each opcode makes at most one node and takes at least one
// byte.
#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <cstring>

#include "formats/little_endian.h"
#include "formats/pickle.h"
#include "formats/pickle_text.h"

namespace unshard::pickle {

class Machine {
 public:
  Machine(std::span<const std::byte> input, const std::string& label, Classify classify);
  Tree run();

 private:
  struct Operation {
    unsigned char code;
    void (Machine::*run)();
  };
  static const std::array<Operation, 66> operations;
  static std::array<void (Machine::*)(), 256> dispatch_table();

  [[noreturn, gnu::cold, gnu::noinline]] void fail(const std::string& what) const;
  [[noreturn, gnu::cold, gnu::noinline]] void fail(const char* what) const { fail(std::string(what)); }
  [[noreturn, gnu::cold, gnu::noinline]] void truncated() const;

  // Input.
  std::size_t left() const { return input_.size() - at_; }
  const char* take(std::uint64_t bytes) {
    if (left() < bytes) truncated();
    const char* taken = reinterpret_cast<const char*>(input_.data()) + at_;
    at_ += static_cast<std::size_t>(bytes);
    return taken;
  }
  template <class Number>
  Number number() {
    return load_little_endian<Number>(reinterpret_cast<const std::byte*>(take(sizeof(Number))));
  }
  std::string_view line();
  std::uint64_t length(unsigned size_bytes);

  // Stack, marks, memo.
  std::size_t fence() const { return marks_.empty() ? 0 : marks_.back(); }
  void push(Node* node) { stack_.push_back(node); }
  Node* top() const {
    if (stack_.size() <= fence()) fail("nothing on the stack");
    return stack_.back();
  }
  Node* pop() {
    Node* node = top();
    stack_.pop_back();
    return node;
  }
  std::span<Node* const> above_mark() const;
  void drop_to_mark();
  void remember(std::uint64_t index);
  void recall(std::uint64_t index);

  // Nodes.
  Node* make(Kind kind) {
    Node* node = static_cast<Node*>(tree_.arena_.take(sizeof(Node)));
    node->kind = kind;
    node->extra = nullptr;
    return node;
  }
  Node* make_text(Kind kind, std::string_view text);
  Node* make_copy(const std::string& text);
  Node* make_integer(std::int64_t value);
  Node* make_items(Kind kind, std::span<Node* const> items);
  Node* make_call(Kind kind, Node* callee, Node* args);
  Node* make_global(std::string_view module, std::string_view name);
  void append(Items& items, std::span<Node* const> more);
  Extra& extra_of(Node* node);
  void append_to(Node* target, std::span<Node* const> more);
  void set_items(Node* target, std::span<Node* const> pairs);
  void push_long(std::uint64_t size_bytes);

  // Opcodes.
  void op_proto();
  void op_frame();
  void op_stop() { stopped_ = true; }
  void op_mark() { marks_.push_back(stack_.size()); }
  void op_pop();
  void op_pop_mark() { above_mark(), drop_to_mark(); }
  void op_dup() { push(top()); }
  void op_none() { push(none_); }
  void op_true() { push(true_); }
  void op_false() { push(false_); }
  void op_int();
  void op_long();
  void op_bin_int() { push(make_integer(number<std::int32_t>())); }
  void op_bin_int1() { push(small_ + number<std::uint8_t>()); }
  void op_bin_int2() { push(make_integer(number<std::uint16_t>())); }
  void op_long1() { push_long(length(1)); }
  void op_long4();
  void op_float();
  void op_bin_float();
  void op_string();
  void op_unicode() { push(make_copy(from_unicode_escape(line()))); }
  void op_text1() { op_text(Kind::text, 1); }
  void op_text4() { op_text(Kind::text, 4); }
  void op_text8() { op_text(Kind::text, 8); }
  void op_bytes1() { op_text(Kind::bytes, 1); }
  void op_bytes4() { op_text(Kind::bytes, 4); }
  void op_bytes8() { op_text(Kind::bytes, 8); }
  void op_text(Kind kind, unsigned size_bytes);
  void op_empty_tuple() { push(empty_tuple_); }
  void op_empty_list() { push(make_items(Kind::list, {})); }
  void op_empty_dict() { push(make_items(Kind::dict, {})); }
  void op_empty_set() { push(make_items(Kind::set, {})); }
  void op_tuple() { gather(Kind::tuple); }
  void op_list() { gather(Kind::list); }
  void op_dict();
  void op_frozen_set() { gather(Kind::set); }
  void gather(Kind kind);
  void op_tuple1() { op_tuple_of(1); }
  void op_tuple2() { op_tuple_of(2); }
  void op_tuple3() { op_tuple_of(3); }
  void op_tuple_of(std::size_t count);
  void op_append();
  void op_appends();
  void op_set_item();
  void op_set_items();
  void op_global();
  void op_stack_global();
  void op_extension1() { op_extension(1); }
  void op_extension2() { op_extension(2); }
  void op_extension4() { op_extension(4); }
  void op_extension(unsigned size_bytes);
  void op_reduce();
  void op_new_object();
  void op_new_object_ex();
  void op_inst();
  void op_obj();
  void op_build();
  void op_persistent_text();
  void op_persistent();
  void op_put() { remember(decimal_index()); }
  void op_put1() { remember(number<std::uint8_t>()); }
  void op_put4() { remember(number<std::uint32_t>()); }
  void op_memoize() { remember(remembered_); }
  void op_get() { recall(decimal_index()); }
  void op_get1() { recall(number<std::uint8_t>()); }
  void op_get4() { recall(number<std::uint32_t>()); }
  void op_buffer();
  std::uint64_t decimal_index();
  void add_persistent(Node* id);

  std::span<const std::byte> input_;
  const std::string& label_;
  Classify classify_;
  Tree tree_;
  std::size_t at_ = 0;
  std::size_t opcode_at_ = 0;
  bool stopped_ = false;
  unsigned protocol_ = 0;
  std::vector<Node*> stack_;
  std::vector<std::size_t> marks_;  ///< stack heights
  std::vector<Node*> memo_;
  std::uint64_t remembered_ = 0;
  Node* small_;  ///< the integers 0 to 255
  Node* none_;
  Node* true_;
  Node* false_;
  Node* empty_tuple_;
};

const std::array<Machine::Operation, 66> Machine::operations{{
    {0x80, &Machine::op_proto},      {0x95, &Machine::op_frame},
    {'.', &Machine::op_stop},        {'(', &Machine::op_mark},
    {'0', &Machine::op_pop},         {'1', &Machine::op_pop_mark},
    {'2', &Machine::op_dup},         {'N', &Machine::op_none},
    {0x88, &Machine::op_true},       {0x89, &Machine::op_false},
    {'I', &Machine::op_int},         {'L', &Machine::op_long},
    {'J', &Machine::op_bin_int},     {'K', &Machine::op_bin_int1},
    {'M', &Machine::op_bin_int2},    {0x8A, &Machine::op_long1},
    {0x8B, &Machine::op_long4},      {'F', &Machine::op_float},
    {'G', &Machine::op_bin_float},   {'S', &Machine::op_string},
    {'T', &Machine::op_text4},       {'U', &Machine::op_text1},
    {'V', &Machine::op_unicode},     {'X', &Machine::op_text4},
    {0x8C, &Machine::op_text1},      {0x8D, &Machine::op_text8},
    {'B', &Machine::op_bytes4},      {'C', &Machine::op_bytes1},
    {0x8E, &Machine::op_bytes8},     {0x96, &Machine::op_bytes8},
    {')', &Machine::op_empty_tuple}, {']', &Machine::op_empty_list},
    {'}', &Machine::op_empty_dict},  {0x8F, &Machine::op_empty_set},
    {'t', &Machine::op_tuple},       {'l', &Machine::op_list},
    {'d', &Machine::op_dict},        {0x91, &Machine::op_frozen_set},
    {0x85, &Machine::op_tuple1},     {0x86, &Machine::op_tuple2},
    {0x87, &Machine::op_tuple3},     {'a', &Machine::op_append},
    {'e', &Machine::op_appends},     {0x90, &Machine::op_appends},
    {'s', &Machine::op_set_item},    {'u', &Machine::op_set_items},
    {'c', &Machine::op_global},      {0x93, &Machine::op_stack_global},
    {0x82, &Machine::op_extension1}, {0x83, &Machine::op_extension2},
    {0x84, &Machine::op_extension4}, {'R', &Machine::op_reduce},
    {0x81, &Machine::op_new_object}, {0x92, &Machine::op_new_object_ex},
    {'i', &Machine::op_inst},        {'o', &Machine::op_obj},
    {'b', &Machine::op_build},       {'P', &Machine::op_persistent_text},
    {'Q', &Machine::op_persistent},  {'p', &Machine::op_put},
    {'q', &Machine::op_put1},        {'r', &Machine::op_put4},
    {0x94, &Machine::op_memoize},    {'g', &Machine::op_get},
    {'h', &Machine::op_get1},        {'j', &Machine::op_get4},
}};

std::array<void (Machine::*)(), 256> Machine::dispatch_table() {
  std::array<void (Machine::*)(), 256> table{};
  for (const Operation& operation : operations) table[operation.code] = operation.run;
  table[0x97] = table[0x98] = &Machine::op_buffer;
  return table;
}

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

void Machine::op_proto() {
  protocol_ = number<std::uint8_t>();
  if (protocol_ > 5) fail("protocol " + std::to_string(protocol_) + ", known are 0 to 5");
}

void Machine::op_frame() {
  if (length(8) > left()) truncated();
}

void Machine::op_pop() {
  if (!marks_.empty() && stack_.size() == marks_.back()) {
    marks_.pop_back();
  } else {
    pop();
  }
}

void Machine::op_int() {
  const std::string_view text = line();
  if (text == "00" || text == "01") {
    push(text == "01" ? true_ : false_);
    return;
  }
  const auto value = decimal(text);
  push(value ? make_integer(*value) : make(Kind::big_integer));
}

void Machine::op_long() {
  const auto value = decimal(line());
  push(value ? make_integer(*value) : make(Kind::big_integer));
}

void Machine::op_long4() {
  const auto size = number<std::int32_t>();
  if (size < 0) fail("an integer of " + std::to_string(size) + " bytes");
  push_long(static_cast<std::uint64_t>(size));
}

void Machine::op_float() {
  const std::string_view text = line();
  Node* node = make(Kind::real);
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), node->real);
  if (error == std::errc::invalid_argument || end != text.data() + text.size()) fail("a float that is no number");
  push(node);
}

void Machine::op_bin_float() {
  const char* from = take(8);
  std::uint64_t bits = 0;
  for (int i = 0; i < 8; ++i) bits = (bits << 8) | static_cast<unsigned char>(from[i]);
  Node* node = make(Kind::real);
  node->real = std::bit_cast<double>(bits);
  push(node);
}

void Machine::op_string() {
  const auto text = unquoted(line());
  if (!text) fail("a string without its quotes");
  push(make_copy(*text));
}

void Machine::op_text(Kind kind, unsigned size_bytes) {
  const std::uint64_t size = length(size_bytes);
  const char* from = take(size);
  push(make_text(kind, {from, static_cast<std::size_t>(size)}));
}

void Machine::gather(Kind kind) {
  Node* node = make_items(kind, above_mark());
  drop_to_mark();
  push(node);
}

void Machine::op_dict() {
  if (above_mark().size() % 2 != 0) fail("a key without a value");
  gather(Kind::dict);
}

void Machine::op_tuple_of(std::size_t count) {
  if (stack_.size() - fence() < count) fail("a tuple of more than is on the stack");
  Node* node = make_items(Kind::tuple, std::span<Node* const>(stack_).last(count));
  stack_.resize(stack_.size() - count);
  push(node);
}

void Machine::op_append() {
  Node* const item = pop();
  append_to(top(), {&item, 1});
}

void Machine::op_appends() {
  const auto items = above_mark();
  if (marks_.back() == 0 || (marks_.size() > 1 && marks_[marks_.size() - 2] >= marks_.back())) fail("nothing to append to");
  append_to(stack_[marks_.back() - 1], items);
  drop_to_mark();
}

void Machine::op_set_item() {
  Node* const value = pop();
  Node* const key = pop();
  const std::array<Node*, 2> pair{key, value};
  set_items(top(), pair);
}

void Machine::op_set_items() {
  const auto items = above_mark();
  if (marks_.back() == 0 || (marks_.size() > 1 && marks_[marks_.size() - 2] >= marks_.back())) fail("nothing to set items of");
  set_items(stack_[marks_.back() - 1], items);
  drop_to_mark();
}

void Machine::op_global() {
  const std::string_view module = line();
  const std::string_view name = line();
  push(make_global(module, name));
}

void Machine::op_stack_global() {
  const Node* name = pop();
  const Node* module = pop();
  if (!name->is_text() || !module->is_text()) fail("a global whose name is no string");
  push(make_global(module->view(), name->view()));
}

void Machine::op_extension(unsigned size_bytes) {
  Node* node = make(Kind::extension);
  node->integer = static_cast<std::int64_t>(length(size_bytes));
  push(node);
}

void Machine::op_reduce() {
  Node* args = pop();
  if (args->kind != Kind::tuple) fail("a call whose arguments are no tuple");
  push(make_call(Kind::call, pop(), args));
}

void Machine::op_new_object() {
  Node* args = pop();
  if (args->kind != Kind::tuple) fail("an object whose arguments are no tuple");
  push(make_call(Kind::object, pop(), args));
}

void Machine::op_new_object_ex() {
  pop();  // keyword arguments: no known class has any
  op_new_object();
}

void Machine::op_inst() {
  const std::string_view module = line();
  const std::string_view name = line();
  Node* args = make_items(Kind::tuple, above_mark());
  drop_to_mark();
  push(make_call(Kind::object, make_global(module, name), args));
}

void Machine::op_obj() {
  const auto items = above_mark();
  if (items.empty()) fail("an object without a class");
  Node* node = make_call(Kind::object, items.front(), make_items(Kind::tuple, items.subspan(1)));
  drop_to_mark();
  push(node);
}

void Machine::op_build() {
  Node* state = pop();
  Extra& extra = extra_of(top());
  if (extra.state != nullptr) fail("an object whose state is set twice");
  extra.state = state;
}

void Machine::op_persistent_text() {
  add_persistent(make_text(Kind::text, line()));
}

void Machine::op_persistent() {
  add_persistent(pop());
}

void Machine::add_persistent(Node* id) {
  Node* node = make_call(Kind::persistent, id, nullptr);
  tree_.persistent_.push_back(node);
  push(node);
}

void Machine::op_buffer() {
  throw Error(ErrorCode::unsupported,
              label_ + ": pickle has its data in buffers outside of it (pickle protocol 5), which no file of torch.save does");
}

std::uint64_t Machine::decimal_index() {
  const auto value = decimal(line());
  if (!value || *value < 0) fail("a memo entry without a number");
  return static_cast<std::uint64_t>(*value);
}

Tree read(std::span<const std::byte> input, const std::string& label, Classify classify) {
  return Machine(input, label, classify).run();
}

}  // namespace unshard::pickle
