// model.safetensors.index.json:
//
//     {"metadata": {"total_size": bytes, "total_parameters": n}, "weight_map": {"tensor name": "model-00001-of-00002.safetensors", ...}}
//
// Source: huggingface_hub src/huggingface_hub/serialization/_base.py (split_state_dict_into_shards_factory); transformers adds
// total_parameters. Only weight_map is needed to load a model. A file name is untrusted: it must stay inside the folder.
#include "hf_index.h"

#include <algorithm>

#include "json_events.h"
#include "unshard/error.h"

namespace unshard {
namespace {

[[noreturn]] void refuse(const std::string& label, const std::string& why) {
  throw Error(ErrorCode::bad_input, label + ": " + why);
}

/// Whether `name` is a relative path that stays in its folder, whatever lies there.
bool stays_inside(std::string_view name) {
  if (name.empty() || name.find('\0') != std::string_view::npos) return false;
  for (std::size_t begin = 0; begin <= name.size();) {
    const std::size_t slash = std::min(name.find('/', begin), name.size());
    const std::string_view part = name.substr(begin, slash - begin);
    if (part.empty() || part == "." || part == "..") return false;
    begin = slash + 1;
  }
  return true;
}

}  // namespace

HfIndex parse_hf_index(std::string_view text, const std::string& label) {
  HfIndex index;
  bool has_map = false;
  read_json(text, label, "index", [&](const JsonEvent& event) {
    const bool in_map = !event.path.empty() && event.path[0] == "weight_map";
    if (event.path.empty() && event.kind != JsonEvent::Kind::object) refuse(label, "the index is not a JSON object");
    if (event.path.size() == 1 && in_map) {
      if (event.kind != JsonEvent::Kind::object || has_map) refuse(label, "the index needs one weight_map, an object");
      has_map = true;
    } else if (in_map) {
      const std::string& tensor = event.path[1];
      const std::string file = printable(event.text);
      if (event.kind != JsonEvent::Kind::text) refuse(label, "the index's weight_map gives tensor " + printable(tensor) + " no file name");
      if (!stays_inside(event.text)) {
        refuse(label, "the index names the file '" + file + "' for tensor " + printable(tensor) +
                          ", which is not a file below the index's folder");
      }
      index.files_by_tensor.emplace_back(tensor, event.text);
    } else if (event.path.size() == 2 && event.arrays == 0 && event.path[0] == "metadata" && event.path[1] == "total_size" &&
               event.kind == JsonEvent::Kind::number) {
      index.total_size = event.number;
    }
  });
  if (!has_map || index.files_by_tensor.empty()) refuse(label, "the index has no weight_map that names tensors");
  std::ranges::sort(index.files_by_tensor);
  const auto twice = std::ranges::adjacent_find(index.files_by_tensor, {}, [](const auto& entry) { return entry.first; });
  if (twice != index.files_by_tensor.end()) refuse(label, "the index names tensor " + printable(twice->first) + " twice");
  return index;
}

}  // namespace unshard
