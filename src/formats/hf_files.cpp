// `model.safetensors`; or shards and `model.safetensors.index.json`, which names each tensor's file; or plain `*.safetensors` files without
// an index; or the same as torch.save files, `pytorch_model.bin`. Where there is an index, only the files that it names are weights (what
// else lies there no loader reads). Sources: huggingface_hub src/huggingface_hub/serialization/_base.py, transformers
// src/transformers/modeling_utils.py (from_pretrained: safetensors before torch files, the single file before the index).
#include "hf_files.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "hf_index.h"
#include "hf_names.h"
#include "labels.h"
#include "unshard/error.h"

namespace unshard {
namespace {

constexpr const char* dead_link = "is not a file that can be read (a dead link?)";

bool is_file_like(const Tree& tree, const std::string& path) {
  const TreeEntry* entry = tree.find(path);
  return entry != nullptr && entry->status.kind != FileKind::folder;
}

/// Names that occur in any of `folders` and satisfy `wanted`, sorted.
template <class Wanted>
std::set<std::string> names_in(const Tree& tree, const std::vector<std::string>& folders, Wanted wanted) {
  std::set<std::string> names;
  for (const std::string& folder : folders) {
    for (const std::string& name : tree.children(folder)) {
      if (wanted(name) && is_file_like(tree, join_path(folder, name))) names.insert(name);
    }
  }
  return names;
}

class Description {
 public:
  Description(const Tree& tree, const std::vector<std::string>& folders) : tree_(tree), folders_(folders) {
    source_.folder = folders.front();
    source_.config_folders = folders;
  }

  Source run() {
    const std::set<std::string> safe = weights(safetensors_weights), pickled = weights(torch_weights);
    const auto safe_index = find_index(safetensors_weights);
    const bool usual = safe_index || std::ranges::any_of(safe, [](const std::string& name) {
                         return name == safetensors_weights.single_file || hf_part_name(safetensors_weights, name);
                       });
    const auto torch_index = usual ? std::nullopt : find_index(torch_weights);
    const std::set<std::string> in_hdf5 = weights(hdf5_weights);
    if (safe.empty() && !safe_index && pickled.empty() && !find_index(torch_weights) && !in_hdf5.empty()) {
      describe(hdf5_weights, in_hdf5, std::nullopt);
      return std::move(source_);
    }
    note_others(in_hdf5);
    const bool read_torch = !usual && (torch_index || !pickled.empty());
    describe(read_torch ? torch_weights : safetensors_weights, read_torch ? pickled : safe, read_torch ? torch_index : safe_index);
    note_others(read_torch ? safe : pickled);
    sort_files();
    return std::move(source_);
  }

 private:
  [[nodiscard]] std::set<std::string> weights(const HfWeights& kind) const {
    return names_in(tree_, folders_, [&](std::string_view name) { return is_hf_weights(kind, name); });
  }

  void describe(const HfWeights& kind, const std::set<std::string>& names, const std::optional<std::string>& index) {
    if (index) {
      by_index(kind, names, *index);
    } else {
      by_name(kind, names);
    }
  }

  void note_others(const std::set<std::string>& names) {
    for (const std::string& name : names) note(name, "lies beside the model's weights; it was not read");
  }
  void note(const std::string& name, const std::string& text) { source_.findings.push_back({Severity::note, name, text}); }
  void error(const std::string& name, const std::string& text) { source_.findings.push_back({Severity::error, name, text}); }

  /// Adds the file `name`, with its copies in other folders. Returns whether there is one.
  bool add_file(const std::string& name) {
    ShardFile* first = nullptr;
    for (const std::string& folder : folders_) {
      const std::string path = join_path(folder, name);
      const TreeEntry* entry = tree_.find(path);
      if (entry == nullptr || entry->status.kind != FileKind::file) continue;
      if (first == nullptr) {
        first = &source_.files.emplace_back();
        first->path = path;
        first->label = label_of(tree_, path);
        first->size_bytes = entry->status.size_bytes;
        first->nodes = entry->nodes;
        continue;  // discover() looks at its problem and its other copies
      }
      if (!entry->problem.empty()) throw Error(ErrorCode::bad_input, printable(path, 4096) + ": " + entry->problem);
      if (first->size_bytes != entry->status.size_bytes) {
        throw Error(ErrorCode::bad_input, printable(first->path) + " has " + std::to_string(first->size_bytes) + " bytes and " +
                                              printable(path) + " has " + std::to_string(entry->status.size_bytes) +
                                              ": two different files of one name; give one of them");
      }
      first->copies.push_back({path, entry->nodes});
      for (const auto& nodes : entry->other_copies) first->copies.push_back({path, nodes});
    }
    return first != nullptr;
  }

  /// Throws if the index could not be carried along with the list of files.
  static void require_content(const std::string& path, const TreeEntry& entry) {
    std::string problem = entry.problem;
    if (problem.empty() && entry.status.kind == FileKind::other) problem = dead_link;
    if (problem.empty() && entry.content.size() != entry.status.size_bytes) {
      problem = "has " + std::to_string(entry.status.size_bytes) + " bytes, too many for an index";
    }
    if (!problem.empty()) throw Error(ErrorCode::bad_input, printable(path) + ": " + problem);
  }

  /// The index that rules the folders, if there is one: its path.
  [[nodiscard]] std::optional<std::string> find_index(const HfWeights& kind) const {
    std::set<std::string> names = names_in(tree_, folders_, [&](std::string_view name) { return is_hf_index(kind, name); });
    if (names.contains(std::string(kind.usual_index))) names = {std::string(kind.usual_index)};
    if (names.empty()) return std::nullopt;
    if (names.size() > 1) {
      throw Error(ErrorCode::bad_input, printable(folders_.front()) + ": has several indexes (" + name_list({names.begin(), names.end()}) +
                                            "); leave the one that belongs to the model");
    }
    std::optional<std::string> found;
    for (const std::string& folder : folders_) {
      const std::string path = join_path(folder, *names.begin());
      if (!is_file_like(tree_, path)) continue;
      require_content(path, *tree_.find(path));
      if (found && tree_.find(*found)->content != tree_.find(path)->content) {
        throw Error(ErrorCode::bad_input, printable(*found) + " and " + printable(path) + " differ; give folders of one model");
      }
      if (!found) found = path;
    }
    return found;
  }

  /// Files by the index. A file that is named and not there is a finding, with its tensors.
  void by_index(const HfWeights& kind, const std::set<std::string>& names, const std::string& index_path) {
    source_.index_label = label_of(tree_, index_path);
    const std::string index_name = "the index " + printable(source_.index_label);
    const HfIndex index = parse_hf_index(tree_.find(index_path)->content, printable(source_.index_label));
    source_.stated_bytes = index.total_size;
    std::map<std::string_view, std::vector<std::string>> tensors_by_file;
    for (const auto& [tensor, file] : index.files_by_tensor) tensors_by_file[file].push_back(tensor);
    std::map<std::string_view, std::uint32_t> number_of;
    for (const auto& [name, tensors] : tensors_by_file) {
      const auto number = static_cast<std::uint32_t>(source_.files.size());
      if (add_file(std::string(name))) {
        number_of[name] = number;
      } else {
        error(std::string(name), index_name + " names this file for " + counted(tensors.size(), "tensor") + " (" + name_list(tensors) +
                                     "), but it is missing; copy it here");
      }
    }
    for (const auto& [tensor, file] : index.files_by_tensor) {
      if (const auto known = number_of.find(file); known != number_of.end()) source_.index.push_back({tensor, known->second});
    }
    for (const std::string& name : names) {
      if (tensors_by_file.contains(name)) continue;
      const std::string text = index_name + " does not name this file";
      if (name == kind.single_file) {  // transformers would take this file, vLLM the index
        error(name, text + ": some loaders would read it and others the index; remove the one that is out of date");
      } else {
        note(name, text + "; it was not read");
      }
    }
  }

  void by_name(const HfWeights& kind, std::set<std::string> names) {
    std::vector<std::string> others;
    if (names.contains(std::string(kind.single_file))) {
      names.erase(std::string(kind.single_file));
      others.assign(names.begin(), names.end());
      names = {std::string(kind.single_file)};
    } else {
      // Mistral publishes its weights a second time, under other names.
      const auto second = [](const std::string& name) { return name.starts_with("consolidated"); };
      if (!std::ranges::all_of(names, second)) {
        std::ranges::copy_if(names, std::back_inserter(others), second);
        std::erase_if(names, second);
      }
      find_missing_parts(kind, names);
    }
    for (const std::string& name : names) {
      if (!add_file(name)) error(name, dead_link);
    }
    note_others({others.begin(), others.end()});
  }

  /// Without an index the file names say how many parts there should be.
  void find_missing_parts(const HfWeights& kind, const std::set<std::string>& names) {
    constexpr std::uint64_t most_parts = 100'000;  // five digits
    std::map<std::pair<std::string, std::uint64_t>, std::set<std::uint64_t>> parts;
    for (const std::string& name : names) {
      if (const auto part = hf_part_name(kind, name); part && part->count < most_parts)
        parts[{part->stem, part->count}].insert(part->number);
    }
    for (const auto& [set, numbers] : parts) {
      const std::uint64_t first = numbers.contains(0) ? 0 : 1;  // some writers count from 0
      std::vector<std::uint64_t> missing;
      for (std::uint64_t number = first; number < first + set.second; ++number) {
        if (!numbers.contains(number)) missing.push_back(number);
      }
      if (missing.empty()) continue;
      error(set.first, "missing files " + as_ranges(missing) + " of " + std::to_string(set.second) + "; copy them here");
    }
  }

  void sort_files() {
    std::vector<std::uint32_t> order(source_.files.size());
    for (std::uint32_t i = 0; i < order.size(); ++i) order[i] = i;
    std::ranges::stable_sort(order, {}, [&](std::uint32_t i) { return source_.files[i].label; });
    std::vector<ShardFile> files;
    std::vector<std::uint32_t> place(order.size());
    for (const std::uint32_t i : order) {
      place[i] = static_cast<std::uint32_t>(files.size());
      files.push_back(std::move(source_.files[i]));
    }
    source_.files = std::move(files);
    for (IndexEntry& entry : source_.index) entry.file = place[entry.file];
  }

  const Tree& tree_;
  const std::vector<std::string>& folders_;
  Source source_;
};

}  // namespace

bool has_hf_weights(const Tree& tree, const std::string& folder) {
  return !names_in(tree, {folder}, [](std::string_view name) {
            return is_hf_weights(safetensors_weights, name) || is_hf_index(safetensors_weights, name) ||
                   is_hf_weights(torch_weights, name) || name == torch_weights.usual_index || is_hf_weights(hdf5_weights, name);
          }).empty();
}

Source describe_hf_files(const Tree& tree, const std::vector<std::string>& folders) {
  return Description(tree, folders).run();
}

}  // namespace unshard
