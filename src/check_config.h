// config.json of a Hugging Face folder against its tensors, for `check`.
#pragma once

#include <string>
#include <vector>

#include "unshard/catalog.h"
#include "unshard/mapping.h"
#include "unshard/source.h"

namespace unshard {

/// Local, pure. Tensors that are missing (unless `lacks_files`: then that is no news) or have another shape than config.json implies, as
/// errors; unexpected ones and other element types as notes. `shape_hint`: Source::shape_hint.
[[nodiscard]] std::vector<Finding> compare_with_config(const std::vector<TensorRow>& table, const ModelConfig& config, bool lacks_files,
                                                       const std::string& shape_hint = "");

/// Local, pure. What keeps `merge` from taking a complete checkpoint when it is given nothing but that; "" when nothing does. `options`:
/// the names and facts of the checkpoint.
[[nodiscard]] std::string obstacle_to_merge(const std::vector<TensorRow>& table, const ModelConfig& config, MapOptions options);

}  // namespace unshard
