// The input format `fsdp`, for the table of formats.
#pragma once

#include "unshard/checkpoint_format.h"

namespace unshard {

[[nodiscard]] const CheckpointFormat& fsdp_format();

}  // namespace unshard
