// The stack machine behind pickle::read. One member function per opcode; which one runs for which byte is in pickle_opcodes.cpp.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "formats/little_endian.h"
#include "formats/pickle.h"

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
  void op_unicode();
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

}  // namespace unshard::pickle
