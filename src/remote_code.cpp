#include "remote_code.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "json_text.h"
#include "names.h"
#include "unshard/agree.h"
#include "unshard/error.h"
#include "unshard/file_system.h"
#include "value_bytes.h"

namespace unshard {
namespace {

constexpr std::uint64_t config_limit_bytes = std::uint64_t{16} << 20;
constexpr std::array<std::string_view, 6> configs{"config.json",           "tokenizer_config.json",       "preprocessor_config.json",
                                                  "processor_config.json", "image_processor_config.json", "video_preprocessor_config.json"};

void add_class(std::vector<std::string>& names, const nlohmann::ordered_json& value) {
  if (value.is_array()) {  // the slow and the fast tokenizer
    for (const auto& one : value)
      if (one.is_string()) add_class(names, one);
    return;
  }
  if (!value.is_string()) return;
  const auto& reference = value.get_ref<const std::string&>();
  const auto dot = reference.rfind('.');
  if (dot == std::string::npos || dot == 0 || reference.find("--") != std::string::npos) return;
  names.push_back(reference.substr(0, dot) + ".py");
}

void sort_once_each(std::vector<std::string>& names) {
  std::sort(names.begin(), names.end());
  names.erase(std::unique(names.begin(), names.end()), names.end());
}

/// Local.
std::string missing_in(FileSystem& files, const std::string& folder) {
  std::vector<std::string> there, named;
  for (const FolderEntry& entry : files.list(folder)) {
    if (entry.status.kind != FileKind::file) continue;
    there.push_back(entry.name);
    if (std::find(configs.begin(), configs.end(), entry.name) == configs.end() || entry.status.size_bytes > config_limit_bytes) continue;
    const std::vector<std::string> more = remote_code_of(read_small_file(files, join_path(folder, entry.name), config_limit_bytes));
    named.insert(named.end(), more.begin(), more.end());
  }
  sort_once_each(named);
  std::erase_if(named, [&](const std::string& name) { return std::find(there.begin(), there.end(), name) != there.end(); });
  if (named.empty()) return "";
  return "auto_map names code that is not beside it: " + name_list(named) + "; a loader that trusts remote code needs it";
}

}  // namespace

std::vector<std::string> remote_code_of(std::string_view text) {
  std::vector<std::string> names;
  (void)attempt([&] {  // a config that is no JSON says nothing of code
    const nlohmann::ordered_json json = parse_json(text, "config");
    const auto map = json.is_object() ? json.find("auto_map") : json.end();
    if (!json.is_object() || map == json.end()) return;
    if (!map->is_object()) return add_class(names, *map);  // as old tokenizer_config.json have it
    for (const auto& [name, value] : map->items()) add_class(names, value);
  });
  sort_once_each(names);
  return names;
}

std::string missing_remote_code(const Session& session, const ConfigFolder& config) {
  const auto text = collectively(session.comm, "config", [&] {
    return session.comm.rank() == config.reader ? missing_in(session.files, config.path) : std::string();
  });
  return text_from(session.comm, config.reader, text);
}

}  // namespace unshard
