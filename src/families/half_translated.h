// Names of which --custom-mapping has translated a part: `decoder.layers.3.self_attn.o_proj.weight` stands for what the family's rule for
// `model.layers.3.self_attn.o_proj.weight` translates.
#pragma once

#include "families/families.h"

namespace unshard {

/// Local. Adds rules for such names behind the family's, and how ranks share those tensors.
void add_half_translated(Family& family);

}  // namespace unshard
