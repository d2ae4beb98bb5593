// The opcodes of a pickle, one row of the table each. What they mean: CPython's Lib/pickletools.py; what real files use of them: torch.save
// writes protocol 2, Python's own pickle.dump protocol 4 (5 from 3.14).
#include <algorithm>
#include <bit>
#include <charconv>

#include "formats/pickle_machine.h"
#include "formats/pickle_text.h"

namespace unshard::pickle {

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

void Machine::op_unicode() {
  push(make_copy(from_unicode_escape(line())));
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

}  // namespace unshard::pickle
