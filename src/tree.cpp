// Listing the given folders on every node, and uniting the lists.
//
// One rank of each node lists; nodes that see the same (a shared file system) are found by a hash first, so that one list is sent and not
// one per node.
#include <algorithm>
#include <deque>
#include <set>

#include "sha256.h"
#include "tracker.h"
#include "unshard/agree.h"
#include "unshard/source.h"
#include "wire.h"

namespace unshard {
namespace {

constexpr int levels_searched = 3;
constexpr std::uint64_t most_small_text_bytes = std::uint64_t{64} << 10U;
constexpr std::uint64_t most_index_bytes = std::uint64_t{64} << 20U;

/// What one node has at a path.
struct Listed {
  std::string path;
  FileStatus status;
  std::string problem;
  std::string content;
};

/// The largest size at which the file is carried along; 0: never.
std::uint64_t carried_bytes(std::string_view name) {
  if (is_tracker(name) || name.ends_with("_config.json")) return most_small_text_bytes;
  return name.ends_with(".safetensors.index.json") || name.ends_with(".bin.index.json") ? most_index_bytes : 0;
}

class Walk {
 public:
  explicit Walk(FileSystem& files) : files_(files) {}

  std::vector<Listed> run(const std::vector<std::string>& roots) {
    for (const std::string& root : roots) {
      const auto status = files_.status(root);
      if (!status) continue;
      listed_.push_back({root, *status, "", ""});
      if (status->kind == FileKind::folder) folders_.push_back({root, levels_searched});
    }
    // Links last: what lies in the tree itself is listed under its own path, not under a link's.
    while (!folders_.empty() || !links_.empty()) {
      std::deque<Folder>& from = folders_.empty() ? links_ : folders_;
      const Folder next = std::move(from.front());
      from.pop_front();
      enter(next);
    }
    return std::move(listed_);
  }

 private:
  struct Folder {
    std::string path;
    int levels = 0;
  };

  void enter(const Folder& folder) {
    std::string real;
    std::vector<FolderEntry> entries;
    try {
      real = files_.canonical(folder.path);
      if (!entered_.insert(real).second) return;
      entries = files_.list(folder.path);
    } catch (const Error& error) {
      for (Listed& entry : listed_) {
        if (entry.path == folder.path) entry.problem = without_path(error, entry.path);
      }
      return;
    }
    std::vector<std::string> names;
    for (const FolderEntry& entry : entries) {
      if (entry.status.kind == FileKind::folder) names.push_back(entry.name);
    }
    std::set<std::string> tracked;
    for (const FolderEntry& entry : entries) {
      listed_.push_back({join_path(folder.path, entry.name), entry.status, "", ""});
      if (entry.status.kind != FileKind::file) continue;
      read_content(listed_.back(), entry.name);
      if (!is_tracker(entry.name)) continue;
      if (const auto step = tracked_folder(listed_.back().content, names)) tracked.insert(*step);
    }
    for (const std::string& name : names) {
      // A rank's folder of Megatron counts with what is in it, as a file does.
      const int least = name.starts_with("mp_rank_") ? 1 : 0;
      const int levels = tracked.count(name) > 0 ? levels_searched : std::max(folder.levels - 1, least);
      if (levels > 0) schedule(real, folder.path, name, levels);
    }
  }

  void schedule(const std::string& real_parent, const std::string& parent, const std::string& name, int levels) {
    const std::string path = join_path(parent, name);
    std::string real;
    try {
      real = files_.canonical(path);
    } catch (const Error&) {
      real = path;  // entering it will say what is wrong
    }
    (real == join_path(real_parent, name) ? folders_ : links_).push_back({path, levels});
  }

  void read_content(Listed& entry, const std::string& name) {
    if (entry.status.size_bytes > carried_bytes(name)) return;
    if (carried_bytes(name) == 0) return;
    try {
      entry.content = read_small_file(files_, entry.path, carried_bytes(name));
    } catch (const Error& error) {
      entry.problem = without_path(error, entry.path);
    }
  }

  /// The path is said once, by whoever reports the problem.
  static std::string without_path(const Error& error, const std::string& path) {
    const std::string text = error.what();
    return text.starts_with(path + ": ") ? text.substr(path.size() + 2) : text;
  }

  FileSystem& files_;
  std::vector<Listed> listed_;
  std::deque<Folder> folders_, links_;
  std::set<std::string> entered_;
};

Bytes encode(const std::vector<Listed>& list) {
  WireWriter out;
  for (const Listed& entry : list) {
    const bool folder = entry.status.kind == FileKind::folder;  // its time and inode say nothing
    out.text(entry.path);
    out.number(static_cast<std::uint64_t>(entry.status.kind));
    out.number(folder ? 0 : entry.status.size_bytes);
    out.number(folder ? 0 : static_cast<std::uint64_t>(entry.status.mtime_ns));
    out.number(folder ? 0 : entry.status.inode);
    out.text(entry.problem);
    out.text(entry.content);
  }
  return out.take();
}

std::vector<Listed> decode(const Bytes& bytes) {
  std::vector<Listed> list;
  for (WireReader in(bytes); !in.at_end();) {
    Listed entry;
    entry.path = in.text();
    entry.status.kind = static_cast<FileKind>(in.number_up_to(static_cast<std::uint64_t>(FileKind::other)));
    entry.status.size_bytes = in.number();
    entry.status.mtime_ns = static_cast<std::int64_t>(in.number());
    entry.status.inode = in.number();
    entry.problem = in.text();
    entry.content = in.text();
    list.push_back(std::move(entry));
  }
  return list;
}

/// Unites lists node by node. `hosts` by node.
class Union {
 public:
  Union(Tree& tree, std::vector<std::string> hosts) : tree_(tree), hosts_(std::move(hosts)) {}

  void add(const Listed& entry, std::uint32_t node) {
    const auto [place, is_new] = tree_.entries.try_emplace(entry.path);
    TreeEntry& known = place->second;
    if (is_new) {
      known = {entry.status, {node}, {}, entry.problem, entry.content};
      return;
    }
    if (known.nodes.back() == node) return;  // a root that lies below another root
    if (known.problem.empty()) known.problem = difference(known, entry, node);
    if (!known.problem.empty() || same_file(known.status, entry.status)) {
      known.nodes.push_back(node);
      return;
    }
    auto& groups = identities_[entry.path];
    const std::pair identity{entry.status.inode, entry.status.mtime_ns};
    const auto found = std::find(groups.begin(), groups.end(), identity);
    const auto position = static_cast<std::size_t>(found - groups.begin());
    if (found == groups.end()) {
      groups.push_back(identity);
      known.other_copies.emplace_back();
    }
    known.other_copies[position].push_back(node);
  }

 private:
  static bool same_file(const FileStatus& a, const FileStatus& b) {
    return a.kind != FileKind::file || (a.inode == b.inode && a.mtime_ns == b.mtime_ns);
  }

  [[nodiscard]] std::string difference(const TreeEntry& known, const Listed& entry, std::uint32_t node) const {
    const std::string& first = hosts_[known.nodes.front()];
    const std::string& second = hosts_[node];
    if (known.status.kind != entry.status.kind)
      return "is a file, a folder or a dead link on " + first + " and something else on " + second;
    if (!entry.problem.empty()) return entry.problem + " (on " + second + ")";
    if (known.status.kind != FileKind::file) return "";
    if (known.status.size_bytes != entry.status.size_bytes) {
      return "has " + std::to_string(known.status.size_bytes) + " bytes on " + first + " and " + std::to_string(entry.status.size_bytes) +
             " bytes on " + second + "; remove the one that does not belong to this checkpoint";
    }
    if (known.content != entry.content)
      return "has one text on " + first + " and another on " + second + "; remove the one that does not belong to this checkpoint";
    return "";
  }

  Tree& tree_;
  std::vector<std::string> hosts_;
  std::map<std::string, std::vector<std::pair<std::uint64_t, std::int64_t>>> identities_;  ///< of other_copies
};

std::vector<int> first_rank_of_nodes(const Comm& comm) {
  std::vector<int> first(static_cast<std::size_t>(comm.node_count()), -1);
  for (int rank = comm.size(); rank-- > 0;) first[static_cast<std::size_t>(comm.node_of(rank))] = rank;
  return first;
}

/// Collective. The list of each node, by node; equal lists travel once.
std::vector<Bytes> exchange(Comm& comm, const Bytes& mine, const std::vector<int>& listers) {
  const bool lister = listers[static_cast<std::size_t>(comm.node_of(comm.rank()))] == comm.rank();
  Bytes hash;
  if (lister) {
    const Digest digest = sha256(mine);
    hash.assign(digest.begin(), digest.end());
  }
  const std::vector<Bytes> hashes = comm.gather_all(hash);
  std::vector<int> source(listers.size());
  for (std::size_t node = 0; node < listers.size(); ++node) {
    const auto same = [&](int other) { return hashes[static_cast<std::size_t>(other)] == hashes[static_cast<std::size_t>(listers[node])]; };
    source[node] = *std::find_if(listers.begin(), listers.end(), same);
  }
  const bool sends = lister && source[static_cast<std::size_t>(comm.node_of(comm.rank()))] == comm.rank();
  const std::vector<Bytes> lists = comm.gather_all(sends ? mine : Bytes{});
  std::vector<Bytes> by_node(listers.size());
  for (std::size_t node = 0; node < listers.size(); ++node) by_node[node] = lists[static_cast<std::size_t>(source[node])];
  return by_node;
}

std::vector<std::string> without_trailing_slashes(std::vector<std::string> roots) {
  std::vector<std::string> result;
  for (std::string& root : roots) {
    while (root.size() > 1 && root.back() == '/') root.pop_back();
    if (std::find(result.begin(), result.end(), root) == result.end()) result.push_back(std::move(root));
  }
  return result;
}

}  // namespace

const TreeEntry* Tree::find(const std::string& path) const {
  const auto found = entries.find(path);
  return found == entries.end() ? nullptr : &found->second;
}

std::vector<std::string> Tree::children(const std::string& folder) const {
  const std::string prefix = folder.ends_with('/') ? folder : folder + "/";
  std::vector<std::string> names;
  auto entry = entries.lower_bound(prefix);
  while (entry != entries.end() && entry->first.starts_with(prefix)) {
    const std::string name = entry->first.substr(prefix.size());
    if (const std::size_t slash = name.find('/'); slash != std::string::npos) {
      entry = entries.lower_bound(prefix + name.substr(0, slash) + static_cast<char>('/' + 1));  // past all that lies below
      continue;
    }
    if (!name.empty()) names.push_back(name);
    ++entry;
  }
  std::sort(names.begin(), names.end());
  return names;
}

Tree list_tree(Comm& comm, FileSystem& files, const std::vector<std::string>& roots) {
  Tree tree;
  tree.roots = without_trailing_slashes(roots);
  tree.node_count = static_cast<std::uint32_t>(comm.node_count());
  const std::vector<int> listers = first_rank_of_nodes(comm);
  const Bytes mine = collectively(comm, "discover", [&] {
    const bool lister = listers[static_cast<std::size_t>(comm.node_of(comm.rank()))] == comm.rank();
    return lister ? encode(Walk(files).run(tree.roots)) : Bytes{};
  });
  const std::vector<Bytes> lists = exchange(comm, mine, listers);
  std::vector<std::string> hosts;
  for (const int rank : listers) hosts.push_back(comm.host_of(rank));
  Union united(tree, std::move(hosts));
  for (std::size_t node = 0; node < lists.size(); ++node) {
    for (const Listed& entry : decode(lists[node])) united.add(entry, static_cast<std::uint32_t>(node));
  }
  for (const std::string& root : tree.roots) {
    if (tree.find(root) != nullptr) continue;
    throw Error(ErrorCode::bad_input, "discover: " + printable(root, 4096) + ": there is no such folder" +
                                          (comm.node_count() > 1 ? " on any of the " + std::to_string(comm.node_count()) + " nodes" : "") +
                                          "; check the path");
  }
  return tree;
}

}  // namespace unshard
