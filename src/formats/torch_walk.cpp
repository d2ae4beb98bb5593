// Shared and cyclic values are legal in a pickle, so a small file can describe an endless tree: the walk is bounded in depth, in steps and
// in the bytes of the names that it makes. Nothing here recurses.
#include "formats/torch_walk.h"

#include <algorithm>
#include <set>
#include <unordered_set>
#include <utility>

#include "formats/torch_names.h"
#include "unshard/error.h"

namespace unshard {

using pickle::Kind;
using pickle::Node;

namespace {

/// A key as str() would give it.
std::string key_text(const Node& key) {
  switch (key.kind) {
    case Kind::text:
    case Kind::bytes:
      return std::string(key.view());
    case Kind::tuple:
      return "(…)";
    default:
      return pickle::describe(key);
  }
}

bool is_sequence(const Node& node) {
  return node.kind == Kind::list || node.kind == Kind::tuple;
}

/// A dict, or one of the dicts of `collections` as pickle builds them: empty, then filled.
bool is_mapping(const Node& node) {
  if (node.kind == Kind::dict) return true;
  return node.kind == Kind::call && ((made_by(node) == TorchName::ordered_dict && node.args().empty()) ||
                                     (made_by(node) == TorchName::default_dict && node.args().size() <= 1));
}

/// Whether `node` says nothing that a user must know of: a number, a text, a torch.Size …
bool is_plain(const Node& node) {
  const std::uint16_t tag = node.kind == Kind::global ? node.tag() : node.callee_tag();
  switch (node.kind) {
    case Kind::global:
    case Kind::call:
    case Kind::object: {
      const TorchName name = torch_name(tag);
      return name == TorchName::plain_data || name == TorchName::size || name == TorchName::dtype || name == TorchName::foreign_dtype ||
             name == TorchName::encode || name == TorchName::tensor_class || (node.kind == Kind::global && name != TorchName::other);
    }
    case Kind::persistent:
    case Kind::extension:
      return false;
    default:
      return true;
  }
}

class Walk {
 public:
  Walk(File& file, const PickledFile& pickled, const std::string& label, std::optional<std::uint32_t> rank)
      : label_(label),
        rebuilder_(file, pickled, rank),
        steps_left_(pickled.tree->size_bytes() + 1024),
        name_bytes_left_(pickled.tree->size_bytes() * 64 + (16 << 20)),
        persistent_count_(pickled.tree->persistent().size()) {}
  TorchContents run(const Node& root);

 private:
  struct Frame {
    const Node* container;
    std::span<const Node* const> items;
    std::size_t next;        ///< in items
    std::size_t path_bytes;  ///< of the container's own path
  };

  [[noreturn]] void fail(const std::string& what) const { throw Error(ErrorCode::bad_input, label_ + ": " + what); }
  void take_step();
  void take_name();
  void visit(const Node& node);
  void descend(const Node& node);
  void advance();
  void tensor(const Node& node);
  void note(const std::string& what);
  void note_names_in(const Node& node);

  const std::string& label_;
  TorchRebuilder rebuilder_;
  std::uint64_t steps_left_;
  std::uint64_t name_bytes_left_;
  std::size_t persistent_count_;
  std::vector<Frame> frames_;
  std::unordered_set<const Node*> seen_;  ///< inside objects
  std::string path_;
  std::vector<std::string> keys_;
  TorchContents contents_;
};

TorchContents Walk::run(const Node& root) {
  contents_.entries.reserve(persistent_count_);  // there are hardly more tensors than storages
  visit(root);
  while (!frames_.empty()) advance();
  return std::move(contents_);
}

void Walk::take_step() {
  if (steps_left_-- == 0) fail("its values repeat inside each other too often; it is no state dict");
}

void Walk::take_name() {
  const std::uint64_t bytes = path_.size() + 16;
  if (bytes > name_bytes_left_) fail("its keys are longer together than the file allows; it is no state dict");
  name_bytes_left_ -= bytes;
}

/// The next item of the innermost container.
void Walk::advance() {
  Frame& frame = frames_.back();
  path_.resize(frame.path_bytes);
  keys_.resize(frames_.size() - 1);
  if (frame.next >= frame.items.size()) {
    frames_.pop_back();
    return;
  }
  const bool sequence = is_sequence(*frame.container);
  keys_.push_back(sequence ? std::to_string(frame.next) : key_text(*frame.items[frame.next]));
  const Node& value = *frame.items[frame.next + (sequence ? 0 : 1)];
  frame.next += sequence ? 1 : 2;
  if (frames_.size() > 1) path_ += '.';
  path_ += keys_.back();
  visit(value);
}

void Walk::visit(const Node& node) {
  take_step();
  if (is_sequence(node) || is_mapping(node)) {
    descend(node);
  } else if (TorchRebuilder::is_tensor(node)) {
    tensor(node);
  } else if (!is_plain(node)) {
    note(pickle::describe(node));
    note_names_in(node);
  }
}

void Walk::descend(const Node& node) {
  constexpr std::size_t most_depth = 64;
  const auto items = is_sequence(node) ? node.elements() : node.pairs();
  if (items.empty()) return;
  if (frames_.size() == most_depth) return note("values nested deeper than " + std::to_string(most_depth) + " levels");
  const bool inside_itself = std::any_of(frames_.begin(), frames_.end(), [&](const Frame& frame) { return frame.container == &node; });
  if (inside_itself) return note("a value that contains itself");
  frames_.push_back({&node, items, 0, path_.size()});
}

void Walk::tensor(const Node& node) {
  take_name();
  TorchEntry entry;
  try {
    rebuilder_.rebuild(node, entry);
  } catch (const Unreadable& why) {
    contents_.unreadable.emplace_back(path_, why.reason());
    return;
  } catch (const Error& error) {
    throw Error(error.code(), label_ + (path_.empty() ? ": " : ": tensor '" + printable(path_) + "': ") + error.what());
  }
  entry.path = path_;
  entry.keys = keys_;
  contents_.entries.push_back(std::move(entry));
  if (!rebuilder_.unknown_class().empty()) note(rebuilder_.unknown_class() + " tensor");
}

void Walk::note(const std::string& what) {
  take_name();
  contents_.objects.push_back({0, path_, what});
}

/// The names of calls and objects inside an object that is not descended into: what would run or be imported if it were loaded. Each node
/// is looked at once, however many objects share it, and a few names per object are enough.
void Walk::note_names_in(const Node& node) {
  constexpr std::size_t most_names = 16;
  std::set<std::string> names{pickle::describe(node)};
  std::vector<const Node*> open{&node};
  const auto look_at = [&](const Node* inner) {
    if (inner != nullptr && seen_.insert(inner).second) open.push_back(inner);
  };
  while (!open.empty()) {
    const Node& at = *open.back();
    open.pop_back();
    const bool named =
        (at.kind == Kind::call || at.kind == Kind::object) && !is_plain(at) && !is_mapping(at) && !TorchRebuilder::is_tensor(at);
    if (named && names.size() < most_names && names.insert(pickle::describe(at)).second) note(pickle::describe(at));
    for (const auto inner_nodes : {at.elements(), at.pairs(), at.args(), at.appended()}) {
      for (const Node* inner : inner_nodes) look_at(inner);
    }
    look_at(at.state());
    look_at(at.callee());
  }
}

}  // namespace

TorchContents walk_contents(File& file, const PickledFile& pickled, const std::string& label, std::optional<std::uint32_t> rank) {
  return Walk(file, pickled, label, rank).run(pickled.tree->root());
}

}  // namespace unshard
