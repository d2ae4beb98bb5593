// A Hugging Face model folder: `model.safetensors`; or shards and `model.safetensors.index.json`, which names each tensor's file; or plain
// `*.safetensors` files without an index. Where there is an index, only the files that it names are weights (what else lies there no loader
// reads). Sources: huggingface_hub src/huggingface_hub/serialization/_base.py, transformers src/transformers/modeling_utils.py
// (from_pretrained). `pytorch_model*.bin` is recognised, so that it can be refused by name.
#include "hf.h"

#include <algorithm>
#include <charconv>
#include <set>
#include <utility>

#include "hf_index.h"
#include "labels.h"
#include "safetensors_header.h"
#include "unshard/error.h"

namespace unshard {
namespace {

constexpr std::string_view index_ending = ".safetensors.index.json";
constexpr std::string_view usual_index = "model.safetensors.index.json";
constexpr std::string_view single_file = "model.safetensors";

bool is_index(std::string_view name) {
  return name.ends_with(index_ending);
}
/// Adapters are weights of another kind: never a model by themselves.
bool is_weights(std::string_view name) {
  return name.ends_with(".safetensors") && !name.starts_with("adapter_model");
}
bool is_torch_weights(std::string_view name) {
  return name == "pytorch_model.bin" || name == "pytorch_model.bin.index.json" ||
         (name.starts_with("pytorch_model-") && name.find("-of-") != std::string_view::npos && name.ends_with(".bin"));
}

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

/// Adds the file `name`, with its copies in other folders. Returns whether there is one.
bool add_file(const Tree& tree, const std::vector<std::string>& folders, const std::string& name, Source& source) {
  ShardFile* first = nullptr;
  for (const std::string& folder : folders) {
    const std::string path = join_path(folder, name);
    const TreeEntry* entry = tree.find(path);
    if (entry == nullptr || entry->status.kind != FileKind::file) continue;
    if (first == nullptr) {
      first = &source.files.emplace_back();
      first->path = path;
      first->label = label_of(tree, path);
      first->size_bytes = entry->status.size_bytes;
      first->nodes = entry->nodes;
    } else if (first->size_bytes != entry->status.size_bytes) {
      throw Error(ErrorCode::bad_input, printable(first->path) + " has " + std::to_string(first->size_bytes) + " bytes and " +
                                            printable(path) + " has " + std::to_string(entry->status.size_bytes) +
                                            ": two different files of one name; give one of them");
    } else {
      first->copies.push_back({path, entry->nodes});
    }
  }
  return first != nullptr;
}

/// Throws if the index could not be carried along with the list of files.
void require_content(const std::string& path, const TreeEntry& entry) {
  std::string problem = entry.problem;
  if (problem.empty() && entry.status.kind == FileKind::other) problem = "is not a file that can be read (a dead link?)";
  if (problem.empty() && entry.content.size() != entry.status.size_bytes) {
    problem = "has " + std::to_string(entry.status.size_bytes) + " bytes, too many for an index";
  }
  if (!problem.empty()) throw Error(ErrorCode::bad_input, printable(path) + ": " + problem);
}

/// The index that rules the folders, if there is one: its path.
std::optional<std::string> find_index(const Tree& tree, const std::vector<std::string>& folders) {
  std::set<std::string> names = names_in(tree, folders, is_index);
  if (names.contains(std::string(usual_index))) names = {std::string(usual_index)};
  if (names.empty()) return std::nullopt;
  if (names.size() > 1) {
    throw Error(ErrorCode::bad_input, printable(folders.front()) + ": has several indexes (" + name_list({names.begin(), names.end()}) +
                                          "); leave the one that belongs to the model");
  }
  std::optional<std::string> found;
  for (const std::string& folder : folders) {
    const std::string path = join_path(folder, *names.begin());
    if (!is_file_like(tree, path)) continue;
    require_content(path, *tree.find(path));
    if (found && tree.find(*found)->content != tree.find(path)->content) {
      throw Error(ErrorCode::bad_input, printable(*found) + " and " + printable(path) + " differ; give folders of one model");
    }
    if (!found) found = path;
  }
  return found;
}

/// Files by the index. A file that is named and not there is a finding, with its tensors.
void describe_indexed(const Tree& tree, const std::vector<std::string>& folders, const std::string& index_path, Source& source) {
  source.index_label = label_of(tree, index_path);
  const HfIndex index = parse_hf_index(tree.find(index_path)->content, printable(source.index_label));
  source.stated_bytes = index.total_size;
  std::map<std::string, std::vector<std::string>> tensors_by_file;
  for (const auto& [tensor, file] : index.files_by_tensor) tensors_by_file[file].push_back(tensor);
  std::map<std::string, std::uint32_t> number_of;
  for (const auto& [name, tensors] : tensors_by_file) {
    const auto number = static_cast<std::uint32_t>(source.files.size());
    if (add_file(tree, folders, name, source)) {
      number_of[name] = number;
    } else {
      source.findings.push_back({Severity::error, name,
                                 "the index " + printable(source.index_label) + " names this file for " + std::to_string(tensors.size()) +
                                     " tensors (" + name_list(tensors) + "), but it is missing; copy it here"});
    }
  }
  for (const auto& [tensor, file] : index.files_by_tensor) {
    if (const auto known = number_of.find(file); known != number_of.end()) source.index.push_back({tensor, known->second});
  }
  for (const std::string& name : names_in(tree, folders, is_weights)) {
    if (tensors_by_file.contains(name)) continue;
    const bool ambiguous = name == single_file;  // transformers would take this file, vLLM the index
    source.findings.push_back(
        {ambiguous ? Severity::error : Severity::note, name,
         "the index " + printable(source.index_label) + " does not name this file" +
             (ambiguous ? ": some loaders would read it and others the index; remove the one that is out of date" : "; it was not read")});
  }
}

/// The numbers of `model-00001-of-00003.safetensors`.
struct PartName {
  std::string stem;
  std::uint64_t number = 0, count = 0;
};

std::optional<std::uint64_t> digits(std::string_view text) {
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return value;
}

std::optional<PartName> part_name(std::string_view name) {
  name.remove_suffix(std::string_view(".safetensors").size());
  const auto of = name.rfind("-of-");
  if (of == std::string_view::npos) return std::nullopt;
  const auto dash = name.rfind('-', of - 1);
  if (of == 0 || dash == std::string_view::npos) return std::nullopt;
  const auto number = digits(name.substr(dash + 1, of - dash - 1));
  const auto count = digits(name.substr(of + 4));
  if (!number || !count) return std::nullopt;
  return PartName{std::string(name.substr(0, dash)), *number, *count};
}

/// Without an index the file names say how many parts there should be.
void find_missing_parts(const std::set<std::string>& names, Source& source) {
  constexpr std::uint64_t most_parts = 100'000;  // five digits
  std::map<std::pair<std::string, std::uint64_t>, std::set<std::uint64_t>> parts;
  for (const std::string& name : names) {
    if (const auto part = part_name(name); part && part->count < most_parts) parts[{part->stem, part->count}].insert(part->number);
  }
  for (const auto& [set, numbers] : parts) {
    const std::uint64_t first = numbers.contains(0) ? 0 : 1;  // some writers count from 0
    std::vector<std::uint64_t> missing;
    for (std::uint64_t number = first; number < first + set.second; ++number) {
      if (!numbers.contains(number)) missing.push_back(number);
    }
    if (missing.empty()) continue;
    source.findings.push_back(
        {Severity::error, set.first, "missing files " + as_ranges(missing) + " of " + std::to_string(set.second) + "; copy them here"});
  }
}

void describe_plain(const Tree& tree, const std::vector<std::string>& folders, Source& source) {
  std::set<std::string> names = names_in(tree, folders, is_weights);
  std::vector<std::string> others;
  if (names.contains(std::string(single_file))) {
    names.erase(std::string(single_file));
    others.assign(names.begin(), names.end());
    names = {std::string(single_file)};
  } else {
    // Mistral publishes its weights a second time, under other names.
    const auto second = [](const std::string& name) { return name.starts_with("consolidated"); };
    if (!std::ranges::all_of(names, second)) {
      std::ranges::copy_if(names, std::back_inserter(others), second);
      std::erase_if(names, second);
    }
    find_missing_parts(names, source);
  }
  for (const std::string& name : names) {
    if (!add_file(tree, folders, name, source))
      source.findings.push_back({Severity::error, name, "is not a file that can be read (a dead link?)"});
  }
  for (const std::string& name : others)
    source.findings.push_back({Severity::note, name, "lies beside the model's weights; it was not read"});
}

void sort_files(Source& source) {
  std::vector<std::uint32_t> order(source.files.size());
  for (std::uint32_t i = 0; i < order.size(); ++i) order[i] = i;
  std::ranges::stable_sort(order, {}, [&](std::uint32_t i) { return source.files[i].label; });
  std::vector<ShardFile> files;
  std::vector<std::uint32_t> place(order.size());
  for (const std::uint32_t i : order) {
    place[i] = static_cast<std::uint32_t>(files.size());
    files.push_back(std::move(source.files[i]));
  }
  source.files = std::move(files);
  for (IndexEntry& entry : source.index) entry.file = place[entry.file];
}

/// What one file holds against what the index says of it.
void compare_with_index(const Source& source, FileId file, const std::vector<SafetensorsTensor>& tensors, std::vector<Finding>& findings) {
  const std::string index = "the index " + printable(source.index_label);
  const std::string& label = source.files[file].label;
  std::set<std::string_view> here;
  for (const SafetensorsTensor& tensor : tensors) here.insert(tensor.name);
  std::vector<std::string> lacking, unnamed;
  for (const IndexEntry& entry : source.index) {
    if (entry.file == file && !here.contains(entry.name)) lacking.push_back(entry.name);
  }
  for (const std::string_view name : here) {
    const auto entry = std::ranges::lower_bound(source.index, name, {}, [](const IndexEntry& e) -> std::string_view { return e.name; });
    if (entry == source.index.end() || entry->name != name) {
      unnamed.emplace_back(name);
    } else if (entry->file != file) {
      findings.push_back({Severity::error, std::string(name),
                          "is in " + printable(label) + ", but " + index + " says it is in " + printable(source.files[entry->file].label) +
                              "; remove the copy that is out of date"});
    }
  }
  constexpr std::size_t most_names = 20;
  if (!lacking.empty()) {
    findings.push_back(
        {Severity::error, label,
         "lacks " + std::to_string(lacking.size()) + " tensors that " + index + " says it holds: " + name_list(lacking, most_names)});
  }
  if (!unnamed.empty()) {
    findings.push_back({Severity::error, label,
                        "holds " + std::to_string(unnamed.size()) + " tensors that " + index +
                            " does not name, so that no loader reads them: " + name_list(unnamed, most_names)});
  }
}

Piece piece_of(const SafetensorsTensor& tensor) {
  Piece piece{tensor.name, tensor.dtype, tensor.shape, {}};
  if (tensor.size_bytes == 0) return piece;
  Chunk chunk;
  chunk.box = whole(tensor.shape);
  chunk.strides = row_major_strides(tensor.shape);
  chunk.position = chunk.record_position = tensor.position;
  chunk.record_bytes = tensor.size_bytes;
  piece.chunks.push_back(chunk);
  return piece;
}

class HfFormat final : public CheckpointFormat {
 public:
  [[nodiscard]] std::string_view name() const override { return "hf"; }
  [[nodiscard]] std::string_view description() const override { return "Hugging Face model folder (safetensors)"; }

  [[nodiscard]] bool recognises(const Tree& tree, const std::string& folder) const override {
    return !names_in(tree, {folder}, [](std::string_view name) {
              return is_weights(name) || is_index(name) || is_torch_weights(name);
            }).empty();
  }

  [[nodiscard]] Source describe(const Tree& tree, const std::vector<std::string>& folders) const override {
    Source source;
    source.format = name();
    source.folder = folders.front();
    source.config_folders = folders;
    if (const auto index = find_index(tree, folders)) {
      describe_indexed(tree, folders, *index, source);
    } else if (names_in(tree, folders, is_weights).empty()) {
      const auto torch_files = names_in(tree, folders, is_torch_weights);
      throw Error(ErrorCode::unsupported, printable(folders.front()) + ": its weights are saved by torch.save (" +
                                              name_list({torch_files.begin(), torch_files.end()}) +
                                              "), which this version can't read; save the model as safetensors");
    } else {
      describe_plain(tree, folders, source);
    }
    sort_files(source);
    return source;
  }

  [[nodiscard]] ShardContents read_headers(const Source& source, FileId file, File& open_file) const override {
    const std::string& label = source.files[file].label;
    const SafetensorsHeader header = read_safetensors_header(open_file, printable(label));
    ShardContents contents;
    contents.pieces.reserve(header.tensors.size());
    for (const SafetensorsTensor& tensor : header.tensors) contents.pieces.push_back(piece_of(tensor));
    if (!header.metadata || !header.metadata->contains("format")) {
      contents.findings.push_back({Severity::note, label, "has no __metadata__ with a format: older releases of transformers fail on it"});
    }
    if (!source.index_label.empty()) compare_with_index(source, file, header.tensors, contents.findings);
    return contents;
  }
};

}  // namespace

const CheckpointFormat& hf_format() {
  static const HfFormat format;
  return format;
}

}  // namespace unshard
