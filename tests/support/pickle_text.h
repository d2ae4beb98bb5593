// Pickles put together by hand, opcode by opcode (CPython Lib/pickletools.py), so that a test shows its input.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace unshard::testing {

/// `size` little-endian bytes.
inline std::string little(std::uint64_t value, int size) {
  std::string bytes;
  for (int i = 0; i < size; ++i) bytes += i < 8 ? static_cast<char>(value >> (8 * i)) : char{0};
  return bytes;
}

namespace pickled {

inline std::string text(std::string_view value) {
  return "X" + little(value.size(), 4) + std::string(value);
}
inline std::string bytes(std::string_view value) {
  return "B" + little(value.size(), 4) + std::string(value);
}
inline std::string number(std::int64_t value) {
  return "\x8A\x08" + little(static_cast<std::uint64_t>(value), 8);
}
inline std::string global(std::string_view module, std::string_view name) {
  return "c" + std::string(module) + "\n" + std::string(name) + "\n";
}
inline const std::string none = "N", yes = "\x88", no = "\x89";

inline std::string joined(const std::vector<std::string>& items) {
  std::string all;
  for (const std::string& item : items) all += item;
  return all;
}
inline std::string tuple(const std::vector<std::string>& items) {
  return "(" + joined(items) + "t";
}
inline std::string list(const std::vector<std::string>& items) {
  return "](" + joined(items) + "e";
}
inline std::string numbers(const std::vector<std::int64_t>& values) {
  std::string all = "(";
  for (const std::int64_t value : values) all += number(value);
  return all + "t";
}
/// Text keys.
inline std::string dict(const std::vector<std::pair<std::string, std::string>>& items) {
  std::string all = "}(";
  for (const auto& [key, value] : items) all += text(key) + value;
  return all + "u";
}
inline std::string call(const std::string& callee, const std::vector<std::string>& args) {
  return callee + tuple(args) + "R";
}
/// An instance made by NEWOBJ with a state.
inline std::string object(const std::string& cls, const std::string& state) {
  return cls + ")\x81" + state + "b";
}
inline std::string whole(const std::string& root, int protocol = 2) {
  return "\x80" + std::string(1, static_cast<char>(protocol)) + root + ".";
}

}  // namespace pickled
}  // namespace unshard::testing
