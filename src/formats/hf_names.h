// The file names of a Hugging Face folder's weights. Sources: transformers src/transformers/utils/__init__.py (SAFE_WEIGHTS_NAME …),
// huggingface_hub src/huggingface_hub/constants.py.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace unshard {

/// One of the ways in which weights are stored: safetensors, pickled by torch.save, or (only by this program) HDF5.
struct HfWeights {
  std::string_view ending;        ///< of a file with weights
  std::string_view single_file;   ///< the name that loaders look for first
  std::string_view index_ending;  ///< of an index
  std::string_view usual_index;
};
inline constexpr HfWeights safetensors_weights{".safetensors", "model.safetensors", ".safetensors.index.json",
                                               "model.safetensors.index.json"};
inline constexpr HfWeights torch_weights{".bin", "pytorch_model.bin", ".bin.index.json", "pytorch_model.bin.index.json"};
inline constexpr HfWeights hdf5_weights{".h5", "model.h5", ".h5.index.json", "model.h5.index.json"};

/// The numbers of `model-00001-of-00003.safetensors`.
struct HfPartName {
  std::string stem;
  std::uint64_t number = 0, count = 0;
};

/// Local, pure. Whether `name` is a file of model weights of this kind. Adapters are weights of another kind, never a model by themselves;
/// of the many other files that end in .bin (training_args.bin, optimizer.bin) only pytorch_model* is meant.
[[nodiscard]] bool is_hf_weights(const HfWeights& kind, std::string_view name);
[[nodiscard]] bool is_hf_index(const HfWeights& kind, std::string_view name);
[[nodiscard]] std::optional<HfPartName> hf_part_name(const HfWeights& kind, std::string_view name);

}  // namespace unshard
