// A pickle, read as data. Nothing is executed, looked up or imported: what a pickle would call or build becomes a node that names it.
//
// A pickle is a program for a stack machine (opcodes of protocols 0 to 5: CPython's Lib/pickletools.py). This reader runs that machine with
// nodes instead of objects: GLOBAL pushes the name of a thing, REDUCE and NEWOBJ make a node that holds callee and arguments, BUILD
// attaches a state. Nodes are shared as objects are, through the memo, so a tree may contain itself.
//
// Cost: nodes lie in an arena and texts are views of the input, so the input must outlive the tree. Memory is at most a fixed multiple of
// the input's size, whatever lengths and indexes the input states, and nothing recurses.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "unshard/error.h"

namespace unshard::pickle {

enum class Kind : std::uint8_t {
  none,
  boolean,
  integer,
  real,
  text,
  bytes,
  big_integer,  ///< beyond 64 bits; value not kept
  global,       ///< the name of a class or function
  tuple,
  list,
  set,
  dict,
  call,        ///< REDUCE: callee(args)
  object,      ///< NEWOBJ, NEWOBJ_EX, INST, OBJ: an instance of class callee, made with args
  persistent,  ///< something kept outside the pickle; callee is its id
  extension,   ///< a number in a registry that only the writer had
};

/// The name of a class or function; where a pickle of protocol 2 or below uses Python 2's (`__builtin__`), Python 3's (`builtins`).
struct Global {
  std::string_view module;
  std::string_view name;
  std::uint16_t tag = 0;  ///< what `Classify` said of it
};

struct Node;

struct Items {
  const Node** data;
  std::uint32_t count;
  std::uint32_t capacity;
  [[nodiscard]] std::span<const Node* const> all() const { return {data, count}; }
};

/// What is done to a call or object after it is made.
struct Extra {
  const Node* state;  ///< of BUILD, or null
  Items pairs;        ///< of SETITEM(S): key, value, key, value …
  Items appended;     ///< of APPEND(S), ADDITEMS
};

/// One value. Which members hold depends on the kind; the functions below are safe for every kind.
struct Node {
  struct Text {
    const char* data;
    std::uint64_t size;
  };
  struct Made {
    const Node* callee;
    const Node* args;  ///< null: none
  };
  Kind kind;
  union {
    std::int64_t integer;  ///< integer, boolean, extension
    double real;
    Text text;    ///< text (UTF-8 as far as the writer kept to it), bytes
    Items items;  ///< tuple, list, set; dict: key, value, key, value …
    Made made;    ///< call, object, persistent
    const Global* global;
  };
  Extra* extra;  ///< of call, object, persistent, extension; or null

  [[nodiscard]] bool is_text() const { return kind == Kind::text; }
  [[nodiscard]] std::string_view view() const;                  ///< of text and bytes; else empty
  [[nodiscard]] std::span<const Node* const> elements() const;  ///< of tuple, list and set; else none
  [[nodiscard]] std::span<const Node* const> pairs() const;     ///< key, value, … of a dict, or set on a call or object; else none
  [[nodiscard]] std::span<const Node* const> appended() const;  ///< to a call or object; else none
  [[nodiscard]] const Node* callee() const;                     ///< of call and object, and the id of a persistent; else null
  [[nodiscard]] std::span<const Node* const> args() const;      ///< positional, of call and object; else none
  [[nodiscard]] const Node* state() const;                      ///< of BUILD; else null
  [[nodiscard]] std::uint16_t tag() const;                      ///< of a global; 0 for anything else
  [[nodiscard]] std::uint16_t callee_tag() const;               ///< of the global that made a call or object; else 0
  /// The value of a text key of a dict (the last one, as in Python); null when there is none.
  [[nodiscard]] const Node* find(std::string_view key) const;
};

// Walking a large tree is mostly these.

inline std::string_view Node::view() const {
  if (kind != Kind::text && kind != Kind::bytes) return {};
  return {text.data, static_cast<std::size_t>(text.size)};
}

inline std::span<const Node* const> Node::elements() const {
  if (kind != Kind::tuple && kind != Kind::list && kind != Kind::set) return {};
  return items.all();
}

inline std::span<const Node* const> Node::pairs() const {
  if (kind == Kind::dict) return items.all();
  if ((kind == Kind::call || kind == Kind::object) && extra != nullptr) return extra->pairs.all();
  return {};
}

inline std::span<const Node* const> Node::appended() const {
  if ((kind != Kind::call && kind != Kind::object) || extra == nullptr) return {};
  return extra->appended.all();
}

inline const Node* Node::callee() const {
  return kind == Kind::call || kind == Kind::object || kind == Kind::persistent ? made.callee : nullptr;
}

inline std::span<const Node* const> Node::args() const {
  if ((kind != Kind::call && kind != Kind::object) || made.args == nullptr) return {};
  return made.args->elements();
}

inline const Node* Node::state() const {
  const bool may_have = kind == Kind::call || kind == Kind::object || kind == Kind::persistent || kind == Kind::extension;
  return may_have && extra != nullptr ? extra->state : nullptr;
}

inline std::uint16_t Node::tag() const {
  return kind == Kind::global ? global->tag : std::uint16_t{0};
}

inline std::uint16_t Node::callee_tag() const {
  return (kind == Kind::call || kind == Kind::object) && made.callee != nullptr ? made.callee->tag() : std::uint16_t{0};
}

inline const Node* Node::find(std::string_view key) const {
  const auto all = pairs();
  for (std::size_t i = all.size(); i >= 2; i -= 2) {
    if (all[i - 2]->is_text() && all[i - 2]->view() == key) return all[i - 1];
  }
  return nullptr;
}

/// Bump allocation for things that need no destructor.
class Arena {
 public:
  explicit Arena(std::size_t first_block_bytes) : next_bytes_(first_block_bytes) {}
  /// Uninitialised, for objects aligned to 8 bytes.
  [[nodiscard]] void* take(std::size_t bytes) {
    bytes = (bytes + 7) & ~std::size_t{7};
    if (left_ < bytes) add_block(bytes);
    void* taken = at_;
    at_ += bytes;
    left_ -= bytes;
    return taken;
  }

 private:
  void add_block(std::size_t least_bytes);

  std::vector<std::unique_ptr<std::byte[]>> blocks_;
  std::byte* at_ = nullptr;
  std::size_t left_ = 0;
  std::size_t next_bytes_;
};

/// Gives each distinct name a number of the caller's, once per pickle.
using Classify = std::uint16_t (*)(std::string_view module, std::string_view name);

/// A pickle that was read. Movable; nodes stay where they are.
class Tree {
 public:
  [[nodiscard]] const Node& root() const { return *root_; }
  [[nodiscard]] std::size_t size_bytes() const {
    return size_bytes_;
  }  ///< of the pickle, STOP included: where the next one of a stream begins
  [[nodiscard]] std::span<const Node* const> persistent() const { return persistent_; }  ///< in order of appearance

 private:
  friend class Machine;
  explicit Tree(std::size_t input_bytes);
  Arena arena_;
  std::map<std::pair<std::string_view, std::string_view>, Global> globals_;
  std::vector<const Node*> persistent_;
  const Node* root_ = nullptr;
  std::size_t size_bytes_ = 0;
};

/// The input ends before the pickle does: more input may help.
class Truncated : public Error {
 public:
  using Error::Error;
};

/// Local. Reads the pickle at the start of `input`. Throws Error(bad_input) beginning with `label` for anything malformed, and Truncated
/// where `input` ends too early; Error(unsupported) for buffers outside the pickle.
[[nodiscard]] Tree read(std::span<const std::byte> input, const std::string& label, Classify classify = nullptr);

/// `posix.system call`, `argparse.Namespace`, `None` …: what a node is, for a message. Names go through printable().
[[nodiscard]] std::string describe(const Node& node);

}  // namespace unshard::pickle
