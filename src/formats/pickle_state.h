// What BUILD sets on an object: its attributes.
#pragma once

#include <string_view>

#include "formats/pickle.h"

namespace unshard::pickle {

/// An attribute of a pickled state: a dict, or (dict or None, slots). Null when there is none.
[[nodiscard]] inline const Node* in_state(const Node* state, std::string_view name) {
  if (state == nullptr) return nullptr;
  if (state->kind == Kind::dict) return state->find(name);
  const auto parts = state->elements();
  for (std::size_t i = parts.size(); state->kind == Kind::tuple && i-- > 0;) {
    if (const Node* found = parts[i]->find(name)) return found;
  }
  return nullptr;
}

[[nodiscard]] inline const Node* attribute(const Node& object, std::string_view name) {
  return in_state(object.state(), name);
}

}  // namespace unshard::pickle
