// The order in which transformers would save the tensors of a model: it decides which file of a split model holds which tensor.
#pragma once

#include "mapping_steps.h"

namespace unshard {

/// Local, pure. Sorts `tensors` (each origin for itself) in the order of save_pretrained:
/// - a family whose tensors transformers 5 converts: as it sorts what it saves, by the names that its modules have;
/// - else, where the checkpoint does not keep the order of the model (MapOptions::keeps_order), by the modules of the family's table,
///   and of a decoder's usual ones where there is no table; unknown names behind their known neighbours, as stored;
/// - else as stored.
void sort_as_saved(const MapContext& context, std::vector<NamedTensor>& tensors);

/// Local, pure. Mapping::block_by_target: the experts that one tensor of a module becomes.
[[nodiscard]] std::vector<std::uint32_t> blocks_of(const MapContext& context, const std::vector<Target>& targets);

}  // namespace unshard
