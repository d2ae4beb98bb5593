// What a folder that no reader takes seems to be, by the names of the files that torch.distributed.checkpoint, Megatron-LM, DeepSpeed,
// Accelerate and transformers write. Only for the error's words.
#include "formats/other_layouts.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "unshard/error.h"
#include "unshard/file_system.h"

namespace unshard {
namespace {

struct Sign {
  std::string_view what;
  std::string_view prefix, suffix;  ///< of a name in the folder
};

// The first that fits decides: Megatron's distributed checkpoints hold a .metadata too.
constexpr std::array<Sign, 14> signs{{
    {"a folder of adapters alone as verl saved them until 2025", "mp_rank_", "_adapter.pt"},
    {"a Megatron checkpoint", "common.pt", ""},
    {"a DeepSpeed checkpoint", "", "_optim_states.pt"},
    {"a DeepSpeed checkpoint", "", "_model_states.pt"},
    {"a Megatron checkpoint", "mp_rank_", ""},
    {"a Megatron checkpoint", "iter_", ""},
    {"an Accelerate checkpoint", "pytorch_model_fsdp", ""},
    {"a DCP checkpoint", ".metadata", ""},
    {"a DCP checkpoint", "__", ".metadata"},
    {"a DCP checkpoint", "", ".distcp"},
    {"a folder of pickled Hugging Face weights", "pytorch_model", ".bin"},
    {"a folder of pickled Hugging Face weights", "pytorch_model", ".bin.index.json"},
    {"a folder of consolidated weights", "consolidated.", ".pth"},
    {"a folder of pickled adapters", "adapter_model", ".bin"},
}};

}  // namespace

std::optional<std::string> other_layout(const Tree& tree, const std::string& folder) {
  const auto names = tree.children(folder);
  for (const Sign& sign : signs) {
    const auto fits = [&](const std::string& name) {
      return name.size() >= sign.prefix.size() + sign.suffix.size() && name.starts_with(sign.prefix) && name.ends_with(sign.suffix);
    };
    const auto found = std::find_if(names.begin(), names.end(), fits);
    if (found != names.end()) return std::string(sign.what) + " (" + printable(*found) + ")";
  }
  return std::nullopt;
}

}  // namespace unshard
