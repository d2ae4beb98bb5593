// What files are called in messages and reports.
#pragma once

#include <algorithm>
#include <string>

#include "unshard/source.h"

namespace unshard {

/// Local, pure. `path` as seen from the innermost of the folders given that holds it.
[[nodiscard]] inline std::string label_of(const Tree& tree, const std::string& path) {
  std::size_t longest = 0;
  for (const std::string& root : tree.roots) {
    const std::string prefix = join_path(root, "");
    if (path.starts_with(prefix)) longest = std::max(longest, prefix.size());
  }
  return path.substr(longest);
}

}  // namespace unshard
