// Which tensors of the base model an adapter's full copies (modules_to_save, biases, whole embeddings) and trained rows stand for.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lora_modules.h"

namespace unshard {

/// Local, pure. The name in the base of the tensor that `one` stands for; none when the base has no such: a new head. Throws
/// Error(unsupported) naming both where it may be another tensor of the base.
[[nodiscard]] std::optional<std::string> replaced_name(const MapContext& context, const AdapterConfig& config, const BaseTensors& bases,
                                                       const ModuleNames& names, const Replacement& one);

/// Local, pure. The trained rows without those of a tied head, whose module has them again in a training checkpoint: PEFT's config lists
/// the embedding alone. `ties`: a family's, head and embedding.
[[nodiscard]] std::vector<Replacement> own_rows(const std::vector<TensorRow>& table, const AdapterUse& use,
                                                const std::vector<std::pair<std::string, std::string>>& ties);

}  // namespace unshard
