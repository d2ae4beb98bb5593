// The object tree of a torch.save file, flattened to paths as state dicts are.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "formats/torch_file.h"
#include "formats/torch_rebuild.h"

namespace unshard {

/// Local. Every tensor and every inert object below the root, in stored order. Dicts, lists and tuples are descended into; what other
/// things hold is not part of the state, but the names in it are reported. Throws Error whose text starts with `label`.
[[nodiscard]] TorchContents walk_contents(File& file, const PickledFile& pickled, const std::string& label,
                                          std::optional<std::uint32_t> rank);

}  // namespace unshard
