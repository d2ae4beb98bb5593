// Plain values and texts as bytes for Comm, and back: for what only ranks of one job exchange, as it lies in memory.
#pragma once

#include <cstring>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "unshard/comm.h"

namespace unshard {

template <class Value>
[[nodiscard]] Bytes bytes_of(const std::vector<Value>& values) {
  static_assert(std::is_trivially_copyable_v<Value>);
  const auto bytes = std::as_bytes(std::span(values));
  return {bytes.begin(), bytes.end()};
}

/// Appends the values that bytes_of turned into `bytes`.
template <class Value>
void append_values(std::vector<Value>& values, std::span<const std::byte> bytes) {
  static_assert(std::is_trivially_copyable_v<Value>);
  const std::size_t before = values.size();
  values.resize(before + bytes.size() / sizeof(Value));
  if (!bytes.empty()) std::memcpy(values.data() + before, bytes.data(), (values.size() - before) * sizeof(Value));
}

/// Collective. The text of `root`, on every rank.
[[nodiscard]] inline std::string text_from(Comm& comm, int root, const std::string& text) {
  const auto view = std::as_bytes(std::span(text));
  Bytes bytes(view.begin(), view.end());
  comm.broadcast(bytes, root);
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace unshard
