// Reading adapter folders.
#pragma once

#include <string>

#include "unshard/catalog.h"
#include "unshard/lora.h"
#include "unshard/merge.h"

namespace unshard {

/// What loaders take for the weights of an adapter's folder: this, or else the older one.
inline constexpr const char *adapter_weights_name = "adapter_model.safetensors", *old_adapter_weights_name = "adapter_model.bin";

/// Collective. The adapter in a PEFT folder; its tensors become rows of the catalog, its files those of the source and the tree. Throws
/// Error(bad_input) naming what is missing, Error(unsupported) for adapters that can't be folded.
[[nodiscard]] AdapterUse read_adapter(const Session& session, const AdapterFolder& folder, const WorkLimits& limits, Tree& tree,
                                      Source& source, Catalog& catalog);

/// Local, pure. Throws what folding options.lora's adapters would throw for what they are: modules that the base lacks, wrong shapes, kinds
/// that can't be folded.
void check_adapters(const std::vector<TensorRow>& table, const ModelConfig& config, const MapOptions& options);

}  // namespace unshard
