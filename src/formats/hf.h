// The input format `hf`: a Hugging Face folder with safetensors or torch.save files, for the table of formats.
#pragma once

#include "unshard/checkpoint_format.h"

namespace unshard {

[[nodiscard]] const CheckpointFormat& hf_format();

}  // namespace unshard
