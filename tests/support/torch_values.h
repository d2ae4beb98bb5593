// Files with one hand-made value, and what the reader says of them.
#pragma once

#include <gtest/gtest.h>

#include <initializer_list>
#include <optional>
#include <string>

#include "formats/torch_file.h"
#include "support/memory_file.h"
#include "support/stored_values.h"
#include "support/torch_archive.h"
#include "unshard/error.h"

namespace unshard::testing {

namespace make = pickled;

/// Numbers as little-endian bytes.
template <class Number>
[[nodiscard]] std::string raw(std::initializer_list<Number> numbers) {
  std::string bytes;
  for (const Number number : numbers) bytes.append(reinterpret_cast<const char*>(&number), sizeof number);
  return bytes;
}
inline const std::string four_floats = raw({1.F, 2.F, 3.F, 4.F});

/// A file with one value named "w" over the storage "0" of four floats.
inline std::string archive_with(const std::string& value) {
  return torch_archive(make::whole(make::dict({{"w", value}})), {{"data/0", four_floats}, {"data/ranks", raw({0, 1, 2, 3})}});
}
inline std::string storage() {
  return make::storage("0", 4);
}
inline std::string four() {
  return make::tensor(storage(), 0, {4}, {1});
}
inline std::string part(std::int64_t count) {
  return make::tensor(storage(), 0, {count}, {1});
}

inline TorchContents parse(const std::string& content, std::optional<std::uint32_t> rank = std::nullopt) {
  MemoryFile file(content);
  return read_torch_file(file, "file.pt", rank);
}
inline TorchEntry only(const std::string& value, std::optional<std::uint32_t> rank = std::nullopt) {
  TorchContents contents = parse(archive_with(value), rank);
  if (contents.entries.size() != 1)
    throw std::runtime_error("expected one tensor: " + (contents.unreadable.empty() ? "" : contents.unreadable[0].second));
  return contents.entries[0];
}
inline std::string reason(const std::string& value) {
  const TorchContents contents = parse(archive_with(value));
  return contents.unreadable.size() == 1 && contents.entries.empty() ? contents.unreadable[0].second : "it is readable";
}

inline void expect_refused(const std::string& name, const std::string& content, const std::string& says,
                           ErrorCode code = ErrorCode::bad_input) {
  try {
    (void)parse(content);
    ADD_FAILURE() << name << ": accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << name << ": " << error.what();
    EXPECT_TRUE(std::string(error.what()).starts_with("file.pt: ")) << name << ": " << error.what();
    EXPECT_NE(std::string(error.what()).find(says), std::string::npos) << name << ": " << error.what();
  }
}

}  // namespace unshard::testing
