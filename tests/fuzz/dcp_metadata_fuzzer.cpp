// Any bytes as a .metadata: pickle, tensors, places. Only an Error may come out.
#include "formats/dcp_index.h"
#include "formats/dcp_metadata.h"
#include "support/memory_file.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  unshard::testing::MemoryFile file(std::string(reinterpret_cast<const char*>(data), size));
  try {
    const auto entries = unshard::read_dcp_metadata(file, "input");
    (void)unshard::pack_dcp_index(entries, unshard::kinds_by_path(entries), "input");
  } catch (const unshard::Error&) {
  }
  return 0;
}
