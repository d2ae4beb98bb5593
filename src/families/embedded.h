// The family files of this folder, embedded in the binary by cmake/embed.cmake.
#pragma once

#include <iterator>
#include <span>
#include <string_view>

namespace unshard {

struct EmbeddedFamily {
  std::string_view name;  ///< file name without .json
  std::string_view text;
};

/// Local. Sorted by name.
[[nodiscard]] std::span<const EmbeddedFamily> embedded_families();

}  // namespace unshard
