// The adapters inside a training checkpoint, and what the run left that says their scale.
#pragma once

#include <optional>

#include "unshard/catalog.h"
#include "unshard/lora.h"
#include "unshard/merge.h"

namespace unshard {

/// Collective. The adapters among the tensors of the checkpoint, each with the settings found beside it: lora_train_meta.json or an
/// adapter_config.json, in the folder of the shards or the one above. `alpha` (--lora-alpha) counts more than these. Without any of them
/// the alpha stays unknown; whoever needs it refuses then (scale_of).
[[nodiscard]] std::vector<AdapterUse> adapters_in(const Session& session, const Source& source, const Catalog& catalog,
                                                  const std::optional<double>& alpha);

/// Local, pure. Takes from the adapters what --drop (`globs`) leaves out; adapters that have nothing left go. Throws Error(usage) for a
/// pair of which only one matrix is left.
void leave_out_dropped(const std::vector<TensorRow>& table, const std::vector<std::string>& globs, std::vector<AdapterUse>& uses);

/// Local, pure. `LoRA: rank 4, alpha 8 (alpha unknown), targets q_proj, v_proj (8 tensors)`.
[[nodiscard]] std::string describe(const AdapterUse& use);

}  // namespace unshard
