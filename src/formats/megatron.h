// The row of the format table for Megatron's files of one model-parallel rank each; megatron.cpp says how they lie.
#pragma once

#include "unshard/checkpoint_format.h"

namespace unshard {

[[nodiscard]] const CheckpointFormat& megatron_format();

}  // namespace unshard
