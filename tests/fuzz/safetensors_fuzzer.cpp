// Any bytes as a safetensors file: its header.
#include "formats/safetensors_header.h"
#include "support/memory_file.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  unshard::testing::MemoryFile file(std::string(reinterpret_cast<const char*>(data), size));
  try {
    (void)unshard::read_safetensors_header(file, "input");
  } catch (const unshard::Error&) {
  }
  return 0;
}
