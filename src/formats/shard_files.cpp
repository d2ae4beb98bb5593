#include "formats/shard_files.h"

#include <algorithm>
#include <tuple>

#include "labels.h"
#include "unshard/error.h"

namespace unshard {

ShardFile shard_at(const Tree& tree, const std::vector<std::string>& paths) {
  const TreeEntry& first = *tree.find(paths.front());
  ShardFile file;
  file.path = paths.front();
  file.label = label_of(tree, file.path);
  file.size_bytes = first.status.size_bytes;
  file.nodes = first.nodes;
  for (std::size_t i = 1; i < paths.size(); ++i) {
    const TreeEntry& other = *tree.find(paths[i]);
    if (other.status.kind != first.status.kind || other.status.size_bytes != first.status.size_bytes) {
      throw Error(ErrorCode::bad_input, printable(paths[i], 4096) + ": has " + std::to_string(other.status.size_bytes) + " bytes but " +
                                            printable(paths.front(), 4096) + " has " + std::to_string(first.status.size_bytes) +
                                            "; give the folders of one checkpoint");
    }
    file.copies.push_back({paths[i], other.nodes});
    for (const auto& nodes : other.other_copies) file.copies.push_back({paths[i], nodes});
  }
  return file;
}

std::optional<ShardFile> shard_named(const Tree& tree, const std::vector<std::string>& folders, const std::string& name) {
  std::vector<std::string> paths;
  for (const std::string& folder : folders) {
    std::string path = join_path(folder, name);
    if (tree.find(path) != nullptr) paths.push_back(std::move(path));
  }
  if (paths.empty()) return std::nullopt;
  return shard_at(tree, paths);
}

std::string visible_problem(const FileStatus& status) {
  if (status.kind == FileKind::folder) return "is a folder, not a file; put the file there";
  if (status.kind == FileKind::other) return "is a dead link or no regular file; put the file itself there";
  if (status.size_bytes == 0) return "is empty (0 bytes); copy it again";
  return "";
}

bool is_usable(const Tree& tree, const ShardFile& file, std::vector<Finding>& findings) {
  std::string problem = visible_problem(tree.find(file.path)->status);
  if (problem.empty()) return true;
  findings.push_back({Severity::error, file.label, std::move(problem), ErrorCode::bad_input});
  return false;
}

void sort_shards(std::vector<ShardFile>& files) {
  std::sort(files.begin(), files.end(),
            [](const ShardFile& a, const ShardFile& b) { return std::tie(a.rank, a.label) < std::tie(b.rank, b.label); });
}

}  // namespace unshard
