// What must be true of the target folder before any work is done.
#include <chrono>
#include <map>
#include <random>
#include <set>
#include <thread>

#include "partial_folder.h"
#include "unshard/agree.h"
#include "unshard/error.h"
#include "unshard/publish.h"
#include "value_bytes.h"
#include "wire.h"

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

/// The deepest folder above the target that exists: there the partial folder will be made.
std::string place_of(FileSystem& files, const std::string& target) {
  std::string place = parent_path(target);
  while (place != "/" && place != "." && !sees(files, place)) place = parent_path(place);
  return place;
}

/// Collective. Which ranks see the place of the target: the deepest that any rank has. Fills path, leader and blind; returns the place.
std::string find_writers(Comm& comm, FileSystem& files, TargetFolder& folder) {
  WireWriter out;
  out.text(folder.path);
  out.text(place_of(files, folder.path));
  std::string place;
  const std::vector<Bytes> all = comm.gather_all(out.written());
  for (int rank = 0; rank < comm.size(); ++rank) {
    WireReader in(all[static_cast<std::size_t>(rank)]);
    const std::string path = in.text(), own_place = in.text();
    if (rank > 0 && own_place.size() <= place.size()) continue;
    folder.path = path;
    folder.leader = rank;
    place = own_place;
  }
  const std::vector<Bytes> seen = comm.gather_all(Bytes{static_cast<std::byte>(sees(files, place) ? 1 : 0)});
  std::set<int> nodes;  // as one rank of a node sees it, the others do
  for (int rank = 0; rank < comm.size(); ++rank) {
    if (seen[static_cast<std::size_t>(rank)][0] != std::byte{0}) nodes.insert(comm.node_of(rank));
  }
  std::set<std::string> hosts;
  for (int rank = 0; rank < comm.size(); ++rank) {
    if (nodes.contains(comm.node_of(rank))) continue;
    folder.blind.push_back(rank);
    hosts.insert(comm.host_of(rank));
  }
  folder.blind_hosts = name_list({hosts.begin(), hosts.end()});
  return place;
}

bool is_first_on_node(const Comm& comm) {
  int first = 0;
  while (comm.node_of(first) != comm.node_of(comm.rank())) ++first;
  return first == comm.rank();
}

/// Finds out early that the folder can't be written, or is another one on another node.
void probe(Comm& comm, FileSystem& files, const std::string& place, const TargetFolder& target) {
  std::random_device random;
  const std::string name = ".unshard-probe-" + std::to_string(random()) + std::to_string(random());
  const std::string path = join_path(place, text_from(comm, target.leader, name));
  collectively(comm, "target", [&] {
    if (comm.rank() == target.leader) write_small_file(files, path, "");
  });
  auto failure = attempt([&] { check_seen_by_writers(comm, files, path, target); });  // the same on every rank
  if (!failure) {
    failure = attempt([&] {
      collectively(comm, "target", [&] {  // a node may have it read-only
        if (target.writes(comm.rank()) && is_first_on_node(comm)) (void)files.open_for_writing(path, false);
      });
    });
  }
  collectively(comm, "target", [&] {
    if (comm.rank() == target.leader) files.remove_file(path);
  });
  if (failure) throw Error(*failure);
}

/// Finds out early that files can't be moved into the target. By the one file that, left by a run that is killed here, counts as nothing.
void probe_existing(Comm& comm, FileSystem& files, const TargetFolder& target) {
  collectively(comm, "target", [&] {
    if (comm.rank() != target.leader) return;
    const std::string path = join_path(target.path, std::string(command_file_name) + std::string(growing_suffix));
    write_small_file(files, path, "");
    files.remove_file(path);
  });
}

}  // namespace

void check_no_link_to(FileSystem& files, const std::string& folder, const std::string& name) {
  for (std::size_t slash = name.find('/'); slash != std::string::npos; slash = name.find('/', slash + 1)) {
    const std::string path = join_path(folder, name.substr(0, slash));
    const bool is_there = files.status(path).has_value();
    if (is_there ? files.canonical(path) != path : is_dead_link(files, path))
      refuse(path, "is a link, where the model has a folder; remove it or choose another --target-dir");
  }
}

void check_no_link_into(Comm& comm, FileSystem& files, const TargetFolder& target, const std::vector<std::string>& paths) {
  if (!target.existed) return;
  collectively(comm, "target", [&] {
    std::map<std::string, std::string> resolved;  // folders
    for (const std::string& path : paths) {
      const std::string folder = parent_path(path), real = files.canonical(path);
      const auto [known, is_new] = resolved.try_emplace(folder);
      if (is_new) known->second = files.canonical(folder);
      if (real == join_path(known->second, base_name(path)) || !holds(files, target.path, real)) continue;
      refuse(path, "is a link to " + printable(real, 4096) + ", which lies inside the target folder; choose another --target-dir");
    }
  });
}

void check_places(Comm& comm, FileSystem& files, const TargetFolder& target, const std::vector<std::string>& names) {
  collectively(comm, "target", [&] {
    if (comm.rank() != target.leader || !target.existed) return;
    for (const std::string& name : names) {
      const std::string path = join_path(target.path, name);
      const auto status = files.status(path);
      if (status && status->kind == FileKind::folder)
        refuse(path, "is a folder, where a file of the model is to go; remove it or choose another --target-dir");
      check_no_link_to(files, target.path, name);
      const auto parent = files.status(parent_path(path));
      if (parent && parent->kind != FileKind::folder)
        refuse(parent_path(path), "is a file, where the model has a folder; remove it or choose another --target-dir");
    }
  });
}

void check_seen_by_writers(Comm& comm, FileSystem& files, const std::string& path, const TargetFolder& target) {
  bool fine = !target.writes(comm.rank()) || sees(files, path);
  for (int tries = 0; !fine && tries < 10; ++tries) {  // a network file system may show a new file a moment later on other nodes
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    fine = sees(files, path);
  }
  const std::vector<Bytes> seen = comm.gather_all(Bytes{static_cast<std::byte>(fine ? 1 : 0)});
  std::set<std::string> hosts;
  for (int rank = 0; rank < comm.size(); ++rank) {
    if (seen[static_cast<std::size_t>(rank)][0] == std::byte{0}) hosts.insert(comm.host_of(rank));
  }
  if (hosts.empty()) return;
  throw Error(ErrorCode::io, "target: " + printable(parent_path(path), 4096) + ": a file made there on " + comm.host_of(target.leader) +
                                 " is not seen on " + name_list({hosts.begin(), hosts.end()}) +
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
    return result;
  });
  const std::string place = find_writers(comm, files, folder);
  folder.partial = folder.path + ".unshard-partial";
  const bool exists =
      collectively(comm, "target", [&] { return comm.rank() == folder.leader && check_contents(files, folder.path, overwrite); });
  folder.existed = comm.reduce_all(exists ? 1 : 0, Reduction::max) != 0;
  if (writes) probe(comm, files, place, folder);
  if (writes && folder.existed) probe_existing(comm, files, folder);
  return folder;
}

}  // namespace unshard
