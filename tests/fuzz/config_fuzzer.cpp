// Any bytes as config.json.
#include "unshard/error.h"
#include "unshard/mapping.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    const auto config = unshard::ModelConfig::parse({reinterpret_cast<const char*>(data), size}, "input");
    (void)config.number("num_hidden_layers");
    (void)config.edited({.dtype = unshard::DType::bf16, .tie_word_embeddings = false, .vocab_size = 7, .remove_quantization = true});
  } catch (const unshard::Error&) {
  }
  return 0;
}
