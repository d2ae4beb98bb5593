// Which entries of a saved state are the weights of a model, by the paths that the writer gave: {"model": …, "optimizer": …}, the model's
// keys beside "optimizer" (torchtitan), {"app": {"model": …, "optim": …}} …
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace unshard {

/// The kinds of tensors in a state, by entry.
struct StateKinds {
  std::vector<std::string> reasons;   ///< why an entry is no weight of a model; "": it is one
  std::vector<std::string> sections;  ///< "app.model.": what stands in front of the weights' names, each once; "" for none
};

/// Local, pure. `paths` of the tensors.
[[nodiscard]] StateKinds kinds_of_state(const std::vector<const std::vector<std::string>*>& paths);

/// Local, pure. Whether an element of a path names the state of an optimizer.
[[nodiscard]] bool names_optimizer(std::string_view element);

}  // namespace unshard
