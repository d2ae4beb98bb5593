// Any bytes as the pickle of a rank file whose container is sound and has some storages: no checksum stands in the way of changes.
#include "formats/torch_file.h"
#include "support/memory_file.h"
#include "support/torch_archive.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace unshard::testing;
  const std::string pickle(reinterpret_cast<const char*>(data), size);
  MemoryFile file(torch_archive(pickle, {{"data/0", std::string(64, '\1')}, {"data/1", std::string(16, '\2')}, {"data/2", ""}}));
  try {
    (void)unshard::read_torch_file(file, "input", 1);
  } catch (const unshard::Error&) {
  }
  return 0;
}
