// The input format `hf`: a Hugging Face folder with safetensors files, for the table of formats.
#pragma once

#include "unshard/checkpoint_format.h"

namespace unshard {

[[nodiscard]] const CheckpointFormat& hf_format();

}  // namespace unshard
