// Where config.json may lie when a checkpoint's folder is part of a larger one.
#pragma once

#include <string>
#include <vector>

#include "unshard/file_system.h"

namespace unshard {

/// Local, pure. In and beside each of `folders`, in order of preference.
[[nodiscard]] inline std::vector<std::string> config_places_beside(const std::vector<std::string>& folders) {
  std::vector<std::string> places;
  for (const std::string& folder : folders) {
    for (const std::string& base : {folder, parent_path(folder)}) {
      for (const char* name : {"huggingface", "hf_config_and_tokenizer", "model/huggingface"}) places.push_back(join_path(base, name));
      places.push_back(base);
    }
  }
  return places;
}

}  // namespace unshard
