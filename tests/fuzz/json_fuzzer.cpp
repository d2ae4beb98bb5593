// Any bytes as a JSON text, read as events.
#include "formats/json_events.h"
#include "unshard/error.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::size_t bytes = 0;
  try {
    unshard::read_json({reinterpret_cast<const char*>(data), size}, "input", "text",
                       [&](const unshard::JsonEvent& event) { bytes += event.text.size() + event.path.size(); });
  } catch (const unshard::Error&) {
  }
  return bytes > 1'000'000'000 ? -1 : 0;
}
