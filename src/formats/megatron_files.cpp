// Names from megatron/training/checkpointing.py (get_checkpoint_name), and from verl before June 2025 (model/mp_rank_TT[_PPP]/model.pt).
#include "formats/megatron_files.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <map>

#include "formats/shard_files.h"
#include "labels.h"
#include "unshard/error.h"
#include "unshard/file_system.h"

namespace unshard {
namespace {

constexpr std::array<std::string_view, 3> weight_files{"model_optim_rng.pt", "model_rng.pt", "model.pt"};

Error bad_input(const std::string& subject, const std::string& what) {
  return {ErrorCode::bad_input, printable(subject, 4096) + ": " + what};
}

/// The file of weights in a rank's folder; "" when there is none.
std::string weight_file(const Tree& tree, const std::string& folder) {
  for (const std::string_view name : weight_files) {
    std::string path = join_path(folder, std::string(name));
    if (tree.find(path) != nullptr) return path;
  }
  return "";
}

/// config.json lies in the checkpoint, or (verl) beside the folder `model`.
std::vector<std::string> config_folders(const std::vector<std::string>& folders) {
  std::vector<std::string> places;
  for (const std::string& folder : folders) {
    for (const std::string& base : {folder, parent_path(folder)}) {
      for (const char* name : {"huggingface", "hf_config_and_tokenizer"}) places.push_back(join_path(base, name));
    }
  }
  for (const std::string& folder : folders) {
    places.push_back(folder);
    places.push_back(parent_path(folder));
  }
  return places;
}

}  // namespace

std::optional<MegatronFolder> parse_megatron_folder(std::string_view name) {
  constexpr std::string_view prefix = "mp_rank_";
  if (!name.starts_with(prefix)) return std::nullopt;
  name.remove_prefix(prefix.size());
  MegatronFolder folder;
  while (true) {
    std::uint32_t number = 0;
    const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), number);
    const auto length = static_cast<std::size_t>(end - name.data());
    const std::size_t least = folder.numbers.empty() ? 2 : 3;  // digits, filled up with zeros
    if (error != std::errc{} || number >= (1U << 24U) || length < least || (length > least && name.front() == '0')) return std::nullopt;
    folder.numbers.push_back(number);
    name.remove_prefix(length);
    if (name.empty()) return folder;
    if (name.front() != '_' || folder.numbers.size() == 3) return std::nullopt;
    name.remove_prefix(1);
  }
}

bool holds_megatron_files(const Tree& tree, const std::string& folder) {
  const auto names = tree.children(folder);
  return std::any_of(names.begin(), names.end(), [&](const std::string& name) {
    return parse_megatron_folder(name) && !weight_file(tree, join_path(folder, name)).empty();
  });
}

Source describe_megatron_files(const Tree& tree, const std::vector<std::string>& folders) {
  std::map<std::vector<std::uint64_t>, std::vector<std::string>> found;  // by the numbers of the name
  Source source;
  source.folder = folders.front();
  source.names_are_published = false;
  source.config_folders = config_folders(folders);
  for (const std::string& folder : folders) {
    for (const std::string& name : tree.children(folder)) {
      const auto parsed = parse_megatron_folder(name);
      if (!parsed) continue;
      const std::string path = weight_file(tree, join_path(folder, name));
      if (!path.empty()) {
        found[parsed->numbers].push_back(path);
      } else if (folders.size() == 1) {
        source.findings.push_back(
            {Severity::error, label_of(tree, join_path(folder, name)), "has no model_optim_rng.pt; copy it again", ErrorCode::bad_input});
      }
    }
  }
  for (const auto& [numbers, paths] : found) {
    if (numbers.size() != found.begin()->first.size()) {
      throw bad_input(paths.front(), "its folder's name has " + std::to_string(numbers.size()) + " numbers, that of " +
                                         printable(found.begin()->second.front(), 4096) + " has " +
                                         std::to_string(found.begin()->first.size()) + "; give the files of one checkpoint");
    }
    ShardFile file = shard_at(tree, paths);
    file.rank = static_cast<std::uint32_t>(source.files.size());
    if (is_usable(tree, file, source.findings)) source.files.push_back(std::move(file));
  }
  return source;
}

}  // namespace unshard
