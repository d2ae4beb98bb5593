// Any bytes as a rank file: container, pickle, tensors. Only an Error may come out.
#include "formats/torch_file.h"
#include "support/memory_file.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  unshard::testing::MemoryFile file(std::string(reinterpret_cast<const char*>(data), size));
  try {
    (void)unshard::read_torch_file(file, "input", 1);
  } catch (const unshard::Error&) {
  }
  return 0;
}
