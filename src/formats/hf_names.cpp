#include "hf_names.h"

#include <charconv>

namespace unshard {
namespace {

std::optional<std::uint64_t> digits(std::string_view text) {
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return value;
}

}  // namespace

bool is_hf_weights(const HfWeights& kind, std::string_view name) {
  if (!name.ends_with(kind.ending)) return false;
  if (kind.ending == safetensors_weights.ending) return !name.starts_with("adapter_model");
  if (kind.ending == hdf5_weights.ending) return name == kind.single_file;  // tf_model.h5 is Keras's
  if (!name.starts_with("pytorch_model")) return false;
  // pytorch_model.bin, pytorch_model.fp16.bin, pytorch_model-00001-of-00002.bin; pytorch_model_fsdp.bin is Accelerate's.
  return name.starts_with("pytorch_model.") || hf_part_name(kind, name);
}

bool is_hf_index(const HfWeights& kind, std::string_view name) {
  return name.ends_with(kind.index_ending);
}

std::optional<HfPartName> hf_part_name(const HfWeights& kind, std::string_view name) {
  if (!name.ends_with(kind.ending)) return std::nullopt;
  name.remove_suffix(kind.ending.size());
  const auto of = name.rfind("-of-");
  if (of == std::string_view::npos || of == 0) return std::nullopt;
  const auto dash = name.rfind('-', of - 1);
  if (dash == std::string_view::npos) return std::nullopt;
  const auto number = digits(name.substr(dash + 1, of - dash - 1));
  const auto count = digits(name.substr(of + 4));
  if (!number || !count) return std::nullopt;
  return HfPartName{std::string(name.substr(0, dash)), *number, *count};
}

}  // namespace unshard
