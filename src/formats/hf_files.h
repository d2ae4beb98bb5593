// Which files of a Hugging Face folder are the model's weights.
#pragma once

#include <string>
#include <vector>

#include "unshard/source.h"

namespace unshard {

/// Local, pure. Whether `folder` itself holds weights, or an index of some.
[[nodiscard]] bool has_hf_weights(const Tree& tree, const std::string& folder);

/// Local, pure. The model in `folders`, which hold parts of one. Throws Error(bad_input) for indexes that contradict each other, are no
/// index, or name files outside their folder.
[[nodiscard]] Source describe_hf_files(const Tree& tree, const std::vector<std::string>& folders);

}  // namespace unshard
