// merge-lora --output adapter: one adapter that does what several do together.
#pragma once

#include <vector>

#include "adapter_output.h"

namespace unshard {

/// Local, pure. Σ weight · scale · B · A as one pair for each module: ranks are stacked, so nothing is lost, and each column of B takes the
/// scale and weight of its adapter, so that the scale of the result is 1. Throws Error(unsupported) naming a tensor that has no sum (DoRA,
/// pairs of bare parameters), Error(bad_input) for shapes of one module that differ.
[[nodiscard]] AdapterOutput combine_adapters(const std::vector<TensorRow>& table, const std::vector<AdapterUse>& uses);

}  // namespace unshard
