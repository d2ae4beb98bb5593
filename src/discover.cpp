// From the folders given to the files of one checkpoint: the folder itself, the step folder above it, or the run folder with its tracker.
#include <algorithm>
#include <set>

#include "check_files.h"
#include "formats/other_layouts.h"
#include "labels.h"
#include "tracker.h"
#include "unshard/checkpoint_format.h"

namespace unshard {
namespace {

constexpr std::size_t most_path = 4096;

Error bad_input(const std::string& path, const std::string& what) {
  return {ErrorCode::bad_input, printable(path, most_path) + ": " + what};
}

/// A folder that holds a checkpoint: of a format of the table, or (format null) of a kind that is only known by name.
struct Candidate {
  std::string folder;
  const CheckpointFormat* format = nullptr;
  std::string other;  ///< what it is, without a format
};

bool is_folder(const Tree& tree, const std::string& path) {
  const TreeEntry* entry = tree.find(path);
  return entry != nullptr && entry->status.kind == FileKind::folder;
}

/// The step folder that a tracker in `folder` names, if there is a tracker.
std::optional<std::string> tracked_step(const Tree& tree, const std::string& folder, const std::vector<std::string>& names) {
  std::vector<std::string> folders;
  for (const std::string& name : names) {
    if (is_folder(tree, join_path(folder, name))) folders.push_back(name);
  }
  for (const std::string& name : names) {
    const std::string path = join_path(folder, name);
    const TreeEntry& tracker = *tree.find(path);
    if (!is_tracker(name) || tracker.status.kind == FileKind::folder) continue;
    if (!tracker.problem.empty()) throw bad_input(path, tracker.problem);
    if (tracker.status.kind == FileKind::other) throw bad_input(path, "this tracker is a dead link; give the step folder itself");
    const std::string_view text = trimmed(tracker.content);
    if (text.empty()) throw bad_input(path, "this tracker is empty: it should name the step to load; give the step folder itself");
    const auto step = tracked_folder(text, folders);
    if (step) return join_path(folder, *step);
    throw bad_input(path, "this tracker names " + printable(text) + ", which is not a folder there (found: " +
                              (folders.empty() ? "none" : name_list(folders)) + "); give the step folder itself");
  }
  return std::nullopt;
}

class Search {
 public:
  Search(const Tree& tree, std::vector<const CheckpointFormat*> formats, bool named)
      : tree_(tree), formats_(std::move(formats)), named_(named) {}

  /// Checkpoints in or below `folder`, outermost only.
  void below(const std::string& folder) {
    for (const CheckpointFormat* format : formats_) {
      if (!(named_ ? format->fits(tree_, folder) : format->recognises(tree_, folder))) continue;
      found.push_back({folder, format, ""});
      return;
    }
    const std::vector<std::string> names = tree_.children(folder);
    if (const auto step = tracked_step(tree_, folder, names)) return below(*step);
    const std::size_t before = found.size();
    for (const std::string& name : names) {
      const std::string path = join_path(folder, name);
      if (is_folder(tree_, path)) below(path);
    }
    if (found.size() > before) return;
    if (auto other = other_layout(tree_, folder)) others.push_back({folder, nullptr, std::move(*other)});
  }

  std::vector<Candidate> found, others;

 private:
  const Tree& tree_;
  std::vector<const CheckpointFormat*> formats_;
  bool named_;  ///< the formats are what --backend names
};

/// What lies in `root`, for a message that nothing was found.
std::string contents(const Tree& tree, const std::string& root) {
  const auto names = tree.children(root);
  if (names.empty()) return "an empty folder";
  return std::to_string(names.size()) + (names.size() == 1 ? " entry" : " entries") + " (" + name_list(names) + ")";
}

std::string wanted(std::string_view backend) {
  std::vector<std::string> known;
  for (const CheckpointFormat* format : formats_for(backend))
    known.emplace_back(backend == "auto" ? format->name() : format->description());
  if (backend == "auto") return "checkpoint of a known format (" + name_list(known) + ")";
  return name_list(known);
}

Error nothing_found(const Tree& tree, std::string_view backend, const std::vector<Candidate>& others) {
  if (!others.empty() && backend == "auto") {
    return {ErrorCode::unsupported, printable(others.front().folder, most_path) + ": is " + others.front().other +
                                        ", which this version can't read; convert it to a " + wanted(backend)};
  }
  for (const auto& [path, entry] : tree.entries) {
    if (entry.status.kind == FileKind::folder && !entry.problem.empty()) return bad_input(path, entry.problem);
  }
  std::string found;
  for (const std::string& root : tree.roots) found += (found.empty() ? "" : "; ") + contents(tree, root);
  if (!others.empty()) found = others.front().other + " in " + printable(others.front().folder, most_path);
  return bad_input(tree.roots.front(),
                   "no " + wanted(backend) + " here; found: " + found + "; give the folder that holds the shards, or the model");
}

Error several(const std::vector<Candidate>& candidates) {
  std::vector<std::string> folders;
  for (const Candidate& candidate : candidates) folders.push_back(candidate.folder + " (" + std::string(candidate.format->name()) + ")");
  return {ErrorCode::bad_input, "several checkpoints: " + name_list(folders, 12) + "; give the folder of one of them"};
}

/// The one of their formats that all parts can be read as: a part may lack what tells it from a simpler format. Null: none.
const CheckpointFormat* format_of_all(const Tree& tree, const std::vector<Candidate>& parts) {
  const auto reads_all = [&](const Candidate& candidate) {
    return std::all_of(parts.begin(), parts.end(),
                       [&](const Candidate& part) { return part.format == candidate.format || candidate.format->fits(tree, part.folder); });
  };
  const auto found = std::find_if(parts.begin(), parts.end(), reads_all);
  return found == parts.end() ? nullptr : found->format;
}

/// The parts of one checkpoint, one for each root that has any: same format, and the same place below each root.
std::vector<Candidate> one_checkpoint(const Tree& tree, std::string_view backend) {
  const std::vector<const CheckpointFormat*> formats = formats_for(backend);
  std::vector<Candidate> parts, others;
  std::set<std::string> places;
  for (const std::string& root : tree.roots) {
    if (!is_folder(tree, root)) throw bad_input(root, "is not a folder; give the folder that holds the shards, or the model");
    Search search(tree, formats, backend != "auto");
    search.below(root);
    if (search.found.size() > 1) throw several(search.found);
    others.insert(others.end(), search.others.begin(), search.others.end());
    if (search.found.empty()) continue;
    const Candidate& found = search.found.front();
    if (std::any_of(parts.begin(), parts.end(), [&](const Candidate& part) { return part.folder == found.folder; })) continue;
    parts.push_back(found);
    const bool is_root = std::find(tree.roots.begin(), tree.roots.end(), found.folder) != tree.roots.end();
    if (!is_root) places.insert(label_of(tree, found.folder));
  }
  if (parts.empty()) throw nothing_found(tree, backend, others);
  const CheckpointFormat* format = format_of_all(tree, parts);
  if (places.size() > 1 || format == nullptr) throw several(parts);
  for (Candidate& part : parts) part.format = format;
  return parts;
}

std::vector<std::string> default_config_folders(const std::vector<std::string>& folders) {
  std::vector<std::string> places;
  for (const char* name : {"huggingface", "hf_config_and_tokenizer", "model/huggingface"}) {
    for (const std::string& folder : folders) places.push_back(join_path(folder, name));
  }
  places.insert(places.end(), folders.begin(), folders.end());
  return places;
}

}  // namespace

Source discover(const Tree& tree, std::string_view backend) {
  if (tree.roots.empty()) throw Error(ErrorCode::usage, "--local-dir: no folder given");
  const std::vector<Candidate> parts = one_checkpoint(tree, backend);
  std::vector<std::string> folders;
  for (const Candidate& part : parts) folders.push_back(part.folder);
  Source source = parts.front().format->describe(tree, folders);
  source.format = parts.front().format->name();
  if (source.folder.empty()) source.folder = folders.front();
  if (source.config_folders.empty()) source.config_folders = default_config_folders(folders);
  source.folders = folders;
  check_files(tree, source.files);
  check_files(tree, source.index_files);
  return source;
}

}  // namespace unshard
