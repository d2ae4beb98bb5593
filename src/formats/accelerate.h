// The input format `accelerate`, for the table of formats.
#pragma once

#include "unshard/checkpoint_format.h"

namespace unshard {

[[nodiscard]] const CheckpointFormat& accelerate_format();

}  // namespace unshard
