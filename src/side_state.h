// Entries of a state dict that are no weights.
#pragma once

#include <string_view>

namespace unshard {

/// Local, pure. Whether `name` is what a module's get_extra_state returned (torch/nn/modules/module.py; some number them): each rank keeps
/// its own, of any size, and no model wants it. So copies may differ and parts may be missing.
[[nodiscard]] inline bool is_side_state(std::string_view name) {
  name.remove_suffix(name.size() - 1 - name.find_last_not_of("0123456789"));  // none but digits: npos + 1 is 0, and nothing is left
  return name.ends_with("_extra_state");
}

}  // namespace unshard
