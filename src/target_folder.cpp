// What must be true of the target folder before any work is done.
#include <chrono>
#include <random>
#include <set>
#include <thread>

#include "partial_folder.h"
#include "unshard/agree.h"
#include "unshard/error.h"
#include "unshard/publish.h"
#include "value_bytes.h"

namespace unshard {
namespace {

[[noreturn]] void refuse(const std::string& path, const std::string& what) {
  throw Error(ErrorCode::usage, printable(path, 4096) + ": " + what);
}

bool same_folder(const std::optional<FileStatus>& a, const std::optional<FileStatus>& b) {
  return a && b && a->inode != 0 && a->inode == b->inode && a->device == b->device;
}

/// Whether `inner` is `outer` or lies below it. By resolved paths, and by identity, which also sees through bind mounts.
bool holds(FileSystem& files, const std::string& outer, const std::string& inner) {
  const std::string below = outer.ends_with('/') ? outer : outer + "/";
  if (inner == outer || inner.starts_with(below)) return true;
  const auto status = files.status(outer);
  for (std::string path = inner;; path = parent_path(path)) {
    if (same_folder(status, files.status(path))) return true;
    if (path == "/" || path == ".") return false;
  }
}

void check_apart(FileSystem& files, const std::string& target, const std::vector<std::string>& sources) {
  for (const std::string& given : sources) {
    if (given.empty()) continue;
    const std::string source = files.canonical(given);
    if (holds(files, source, target)) {
      refuse(target,
             "the target folder is, or lies inside, the source folder " + printable(source, 4096) + "; choose another --target-dir");
    }
    if (holds(files, target, source)) {
      refuse(target, "the source folder " + printable(source, 4096) + " lies inside the target folder; choose another --target-dir");
    }
  }
}

void check_parent(FileSystem& files, const std::string& target) {
  std::string parent = parent_path(target);
  auto status = files.status(parent);
  while (!status && parent != "/" && parent != ".") {
    parent = parent_path(parent);
    status = files.status(parent);
  }
  if (status && status->kind != FileKind::folder) refuse(target, printable(parent, 4096) + " is a file, a folder is needed");
}

bool is_dead_link(FileSystem& files, const std::string& path) {
  const std::string parent = parent_path(path);
  if (!files.status(parent)) return false;
  for (const FolderEntry& entry : files.list(parent)) {
    if (entry.name == base_name(path)) return true;
  }
  return false;
}

/// Whether the target exists. A folder in which an earlier run was killed while publishing counts as empty: open_partial compares the
/// commands.
bool check_contents(FileSystem& files, const std::string& target, bool overwrite) {
  const auto status = files.status(target);
  if (!status) {
    check_parent(files, target);
    if (is_dead_link(files, target)) refuse(target, "is a link to nothing; remove it or choose another --target-dir");
    return false;
  }
  if (status->kind != FileKind::folder) refuse(target, "is a file, a folder is needed; choose another --target-dir");
  const auto parent = files.status(parent_path(target));
  if (parent && parent->device != status->device) {
    refuse(target, "is a mount point, and the partial folder beside it would lie on another file system; choose a folder inside it");
  }
  if (!overwrite && !is_as_good_as_empty(files, target) && !command_of(files, target)) {
    const std::size_t entries = files.list(target).size();
    refuse(target, "the target folder is not empty (" + std::to_string(entries) + (entries == 1 ? " entry" : " entries") +
                       "); choose another --target-dir, or give --overwrite to replace the model in it");
  }
  return true;
}

bool sees(FileSystem& files, const std::string& path) {
  try {
    return files.status(path).has_value();
  } catch (const Error&) {
    return false;
  }
}

/// Finds out early that the folder can't be written, or is another one on another node.
void probe(Comm& comm, FileSystem& files, const std::string& folder) {
  std::random_device random;
  const std::string name = ".unshard-probe-" + std::to_string(random()) + std::to_string(random());
  const std::string path = join_path(folder, text_from(comm, 0, name));
  collectively(comm, "target", [&] {
    if (comm.rank() == 0) write_small_file(files, path, "");
  });
  const auto unseen = attempt([&] { check_seen_by_all(comm, files, path); });  // the same on every rank
  collectively(comm, "target", [&] {
    if (comm.rank() == 0) files.remove_file(path);
  });
  if (unseen) throw Error(*unseen);
}

/// Finds out early that files can't be moved into the target. By the one file that, left by a run that is killed here, counts as nothing.
void probe_existing(Comm& comm, FileSystem& files, const std::string& target) {
  collectively(comm, "target", [&] {
    if (comm.rank() != 0) return;
    const std::string path = join_path(target, std::string(command_file_name) + std::string(growing_suffix));
    write_small_file(files, path, "");
    files.remove_file(path);
  });
}

}  // namespace

void check_seen_by_all(Comm& comm, FileSystem& files, const std::string& path) {
  bool here = sees(files, path);
  for (int tries = 0; !here && tries < 10; ++tries) {  // a network file system may show a new file a moment later on other nodes
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    here = sees(files, path);
  }
  const std::vector<Bytes> seen = comm.gather_all(Bytes{static_cast<std::byte>(here ? 1 : 0)});
  std::set<std::string> blind;
  for (int rank = 0; rank < comm.size(); ++rank) {
    if (seen[static_cast<std::size_t>(rank)][0] == std::byte{0}) blind.insert(comm.host_of(rank));
  }
  if (blind.empty()) return;
  throw Error(ErrorCode::io, "target: " + printable(parent_path(path), 4096) + ": a file made there on " + comm.host_of(0) +
                                 " is not seen on " + name_list({blind.begin(), blind.end()}) +
                                 "; choose a --target-dir on a file system that all nodes share");
}

TargetFolder check_target_folder(Comm& comm, FileSystem& files, const std::string& target, const std::vector<std::string>& sources,
                                 bool overwrite, bool writes) {
  TargetFolder folder = collectively(comm, "target", [&] {
    if (target.empty()) throw Error(ErrorCode::usage, "--target-dir: is empty; name the folder to write");
    TargetFolder result;
    result.path = files.canonical(target);
    result.overwrite = overwrite;
    if (result.path == "/") refuse(result.path, "the root folder can't be the target; choose a folder inside it");
    check_apart(files, result.path, sources);
    if (comm.rank() == 0) result.existed = check_contents(files, result.path, overwrite);
    return result;
  });
  folder.path = text_from(comm, 0, folder.path);
  folder.partial = folder.path + ".unshard-partial";
  folder.existed = comm.reduce_all(folder.existed ? 1 : 0, Reduction::max) != 0;
  const std::string parent = parent_path(folder.path);
  const bool parent_exists = collectively(comm, "target", [&] { return comm.rank() == 0 && files.status(parent).has_value(); });
  if (writes && comm.reduce_all(parent_exists ? 1 : 0, Reduction::max) != 0) probe(comm, files, parent);
  if (writes && folder.existed) probe_existing(comm, files, folder.path);
  return folder;
}

}  // namespace unshard
