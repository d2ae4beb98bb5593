#include "support/memory_file_system.h"

#include <algorithm>
#include <cstring>
#include <filesystem>

namespace unshard::test {

namespace {

struct Fault {
  Call call;
  std::string path_part;
  std::uint64_t skip = 0;
  ErrorCode code = ErrorCode::io;
};

struct Node {
  bool folder = false;
  std::vector<std::byte> bytes;
  std::uint64_t inode = 0;
};

bool changes_disk(Call call) {
  switch (call) {
    case Call::open_for_reading:
    case Call::read:
    case Call::status:
    case Call::list:
      return false;
    default:
      return true;
  }
}

bool below(const std::string& path, const std::string& folder) {
  return path.size() > folder.size() && path.starts_with(folder) && (folder.ends_with('/') || path[folder.size()] == '/');
}

std::string normal(const std::string& path) {
  std::string text = std::filesystem::path(path).lexically_normal().string();
  if (text.size() > 1 && text.back() == '/') text.pop_back();
  return text;
}

}  // namespace

struct MemoryDisk {
  mutable std::recursive_mutex mutex;
  std::map<std::string, std::shared_ptr<Node>> nodes;  // by key: the path, or the path with `@node` before it on a disk of a node's own
  std::map<std::string, std::string> links;
  std::map<std::string, std::uint64_t> devices;
  std::vector<Fault> faults;
  std::vector<std::string> lies;
  std::optional<std::uint64_t> last_change;
  std::uint64_t change_count = 0;
  std::uint64_t capacity = std::uint64_t{1} << 40;
  bool can_reserve = true;
  std::function<void()> at_drop_cache;
  std::uint64_t next_inode = 1;
  int next_node = 1;

  [[nodiscard]] std::uint64_t used() const {
    std::uint64_t sum = 0;
    for (const auto& [key, node] : nodes) sum += node->bytes.size();
    return sum;
  }

  void check(Call call, const std::string& path) {
    if (changes_disk(call)) {
      if (last_change && change_count >= *last_change) throw Error(ErrorCode::io, path + ": the disk is gone");
      ++change_count;
    }
    for (Fault& fault : faults) {
      if (fault.call != call || path.find(fault.path_part) == std::string::npos) continue;
      if (fault.skip == 0) throw Error(fault.code, path + ": Input/output error (injected)");
      --fault.skip;
    }
  }

  void grow(const std::string& path, Node& node, std::uint64_t size_bytes) {
    if (size_bytes > node.bytes.size() && size_bytes - node.bytes.size() > capacity - std::min(capacity, used())) {
      throw Error(ErrorCode::no_space, path + ": No space left on device");
    }
    node.bytes.resize(static_cast<std::size_t>(size_bytes));
  }

  void make_folders(const std::string& key) {
    if (key.empty() || nodes.contains(key)) return;
    const auto slash = key.rfind('/');
    if (slash != std::string::npos && slash > 0) make_folders(key.substr(0, slash));
    nodes[key] = std::make_shared<Node>(Node{true, {}, next_inode++});
  }
};

class MemoryFile final : public File {
 public:
  MemoryFile(std::shared_ptr<MemoryDisk> disk, std::string path, std::shared_ptr<Node> node, IoCounters& counters)
      : disk_(std::move(disk)), path_(std::move(path)), node_(std::move(node)), counters_(counters) {}

  [[nodiscard]] const std::string& path() const override { return path_; }
  [[nodiscard]] std::uint64_t size() const override {
    const std::lock_guard lock(disk_->mutex);
    return node_->bytes.size();
  }
  void read_at(std::uint64_t position, std::span<std::byte> to) override {
    const std::lock_guard lock(disk_->mutex);
    disk_->check(Call::read, path_);
    if (position > node_->bytes.size() || to.size() > node_->bytes.size() - position)
      throw Error(ErrorCode::bad_input, path_ + ": truncated");
    if (!to.empty()) std::memcpy(to.data(), node_->bytes.data() + position, to.size());
    ++counters_.reads;
    counters_.read_bytes += to.size();
  }
  void write_at(std::uint64_t position, std::span<const std::byte> from) override {
    const std::lock_guard lock(disk_->mutex);
    disk_->check(Call::write, path_);
    if (from.empty()) return;
    if (position + from.size() > node_->bytes.size()) disk_->grow(path_, *node_, position + from.size());
    const bool lies =
        std::any_of(disk_->lies.begin(), disk_->lies.end(), [&](const auto& part) { return path_.find(part) != std::string::npos; });
    if (!lies) std::memcpy(node_->bytes.data() + position, from.data(), from.size());
    ++counters_.writes;
    counters_.written_bytes += from.size();
  }
  bool reserve(std::uint64_t size_bytes) override {
    const std::lock_guard lock(disk_->mutex);
    disk_->check(Call::reserve, path_);
    disk_->grow(path_, *node_, size_bytes);
    return disk_->can_reserve;
  }
  void start_writeback(std::uint64_t, std::uint64_t) override {}
  void drop_cache(std::uint64_t, std::uint64_t) override {
    if (disk_->at_drop_cache) disk_->at_drop_cache();  // without the lock: others go on
    const std::lock_guard lock(disk_->mutex);
    disk_->check(Call::drop_cache, path_);
  }
  void sync() override {
    const std::lock_guard lock(disk_->mutex);
    disk_->check(Call::sync, path_);
  }

 private:
  std::shared_ptr<MemoryDisk> disk_;
  std::string path_;
  std::shared_ptr<Node> node_;
  IoCounters& counters_;
};

MemoryFileSystem::MemoryFileSystem() : MemoryFileSystem(std::make_shared<MemoryDisk>(), 0, {}) {
  disk_->make_folders("/");
}

MemoryFileSystem::MemoryFileSystem(std::shared_ptr<MemoryDisk> disk, int node, std::vector<std::string> local_folders)
    : disk_(std::move(disk)), node_(node), local_folders_(std::move(local_folders)) {}

std::unique_ptr<MemoryFileSystem> MemoryFileSystem::other_node(std::vector<std::string> local_folders) const {
  const std::lock_guard lock(disk_->mutex);
  const int node = disk_->next_node++;
  return std::unique_ptr<MemoryFileSystem>(new MemoryFileSystem(disk_, node, std::move(local_folders)));
}

std::string MemoryFileSystem::canonical(const std::string& path) {
  const std::lock_guard lock(disk_->mutex);
  std::string text = normal(path);
  for (int hops = 0; hops < 40; ++hops) {
    bool changed = false;
    for (const auto& [from, to] : disk_->links) {
      if (text != from && !below(text, from)) continue;
      const std::string rest = text.substr(from.size());
      text = normal((to.starts_with('/') ? to : parent_path(from) + "/" + to) + rest);
      changed = true;
    }
    if (!changed) break;
  }
  return text;
}

std::string MemoryFileSystem::key_of(const std::string& path) const {
  const std::string text = const_cast<MemoryFileSystem*>(this)->canonical(path);
  for (const std::string& local : local_folders_) {
    if (text == local || below(text, local)) return "@" + std::to_string(node_) + text;
  }
  return text;
}

std::optional<FileStatus> MemoryFileSystem::status_of_key(const std::string& key) const {
  const auto found = disk_->nodes.find(key);
  if (found == disk_->nodes.end()) return std::nullopt;
  FileStatus status;
  status.kind = found->second->folder ? FileKind::folder : FileKind::file;
  status.size_bytes = found->second->bytes.size();
  status.inode = found->second->inode;
  for (const auto& [folder, device] : disk_->devices) {
    if (key == folder || below(key, folder)) status.device = device;
  }
  return status;
}

void MemoryFileSystem::put(const std::string& path, const std::string& content) {
  const std::lock_guard lock(disk_->mutex);
  const std::string key = key_of(path);
  disk_->make_folders(key.substr(0, key.rfind('/')));
  Node node{false, std::vector<std::byte>(content.size()), disk_->next_inode++};
  if (!content.empty()) std::memcpy(node.bytes.data(), content.data(), content.size());
  disk_->nodes[key] = std::make_shared<Node>(std::move(node));
}

void MemoryFileSystem::link(const std::string& path, const std::string& to) {
  const std::lock_guard lock(disk_->mutex);
  disk_->links[normal(path)] = to;
}

bool MemoryFileSystem::exists(const std::string& path) const {
  const std::lock_guard lock(disk_->mutex);
  return disk_->nodes.contains(key_of(path));
}

std::string MemoryFileSystem::content(const std::string& path) const {
  const std::lock_guard lock(disk_->mutex);
  const auto found = disk_->nodes.find(key_of(path));
  if (found == disk_->nodes.end()) return "";
  return {reinterpret_cast<const char*>(found->second->bytes.data()), found->second->bytes.size()};
}

std::vector<std::string> MemoryFileSystem::tree(const std::string& folder) const {
  const std::lock_guard lock(disk_->mutex);
  const std::string key = key_of(folder);
  std::vector<std::string> paths;
  for (const auto& [path, node] : disk_->nodes) {
    if (!node->folder && below(path, key)) paths.push_back(path.substr(key.size() + (key.ends_with('/') ? 0 : 1)));
  }
  return paths;
}

void MemoryFileSystem::set_capacity(std::uint64_t bytes) {
  const std::lock_guard lock(disk_->mutex);
  disk_->capacity = bytes;
}
void MemoryFileSystem::set_can_reserve(bool can) {
  const std::lock_guard lock(disk_->mutex);
  disk_->can_reserve = can;
}
void MemoryFileSystem::set_device(const std::string& folder, std::uint64_t device) {
  const std::lock_guard lock(disk_->mutex);
  disk_->devices[folder] = device;
}
void MemoryFileSystem::fail(Call call, std::string path_part, std::uint64_t skip, ErrorCode code) {
  const std::lock_guard lock(disk_->mutex);
  disk_->faults.push_back({call, std::move(path_part), skip, code});
}
void MemoryFileSystem::fail_changes_after(std::uint64_t count) {
  const std::lock_guard lock(disk_->mutex);
  disk_->last_change = disk_->change_count + count;
}
std::uint64_t MemoryFileSystem::changes() const {
  const std::lock_guard lock(disk_->mutex);
  return disk_->change_count;
}
void MemoryFileSystem::at_drop_cache(std::function<void()> call) {
  disk_->at_drop_cache = std::move(call);
}

void MemoryFileSystem::lie(std::string path_part) {
  const std::lock_guard lock(disk_->mutex);
  disk_->lies.push_back(std::move(path_part));
}
void MemoryFileSystem::heal() {
  const std::lock_guard lock(disk_->mutex);
  disk_->faults.clear();
  disk_->lies.clear();
  disk_->last_change.reset();
}

std::unique_ptr<File> MemoryFileSystem::open_for_reading(const std::string& path) {
  const std::lock_guard lock(disk_->mutex);
  disk_->check(Call::open_for_reading, path);
  const auto found = disk_->nodes.find(key_of(path));
  if (found == disk_->nodes.end()) throw Error(ErrorCode::io, path + ": No such file or directory");
  if (found->second->folder) throw Error(ErrorCode::bad_input, path + ": is a folder, a file was expected");
  ++counters_.opens;
  return std::make_unique<MemoryFile>(disk_, path, found->second, counters_);
}

std::unique_ptr<File> MemoryFileSystem::open_for_writing(const std::string& path, bool create) {
  const std::lock_guard lock(disk_->mutex);
  disk_->check(Call::open_for_writing, path);
  const std::string key = key_of(path);
  auto found = disk_->nodes.find(key);
  if (found != disk_->nodes.end() && found->second->folder) throw Error(ErrorCode::io, path + ": Is a directory");
  if (found == disk_->nodes.end()) {
    if (!create || !status(parent_path(path))) throw Error(ErrorCode::io, path + ": No such file or directory");
    found = disk_->nodes.emplace(key, std::make_shared<Node>(Node{false, {}, disk_->next_inode++})).first;
  } else if (create) {
    found->second->bytes.clear();
  }
  ++counters_.opens;
  return std::make_unique<MemoryFile>(disk_, path, found->second, counters_);
}

std::optional<FileStatus> MemoryFileSystem::status(const std::string& path) {
  const std::lock_guard lock(disk_->mutex);
  disk_->check(Call::status, path);
  return status_of_key(key_of(path));
}

std::vector<FolderEntry> MemoryFileSystem::list(const std::string& folder) {
  const std::lock_guard lock(disk_->mutex);
  disk_->check(Call::list, folder);
  const std::string key = key_of(folder);
  const auto own = disk_->nodes.find(key);
  if (own == disk_->nodes.end() || !own->second->folder) throw Error(ErrorCode::io, folder + ": No such file or directory");
  std::map<std::string, FileStatus> entries;
  for (const auto& [path, node] : disk_->nodes) {
    if (path != key && normal(parent_path(path)) == key) entries[std::string(base_name(path))] = *status_of_key(path);
  }
  for (const auto& [path, to] : disk_->links) {
    if (key_of(parent_path(path)) != key) continue;
    const auto status = status_of_key(key_of(path));
    entries[std::string(base_name(path))] = status ? *status : FileStatus{FileKind::other};
  }
  std::vector<FolderEntry> sorted;
  for (const auto& [name, status] : entries) sorted.push_back({name, status});
  return sorted;
}

void MemoryFileSystem::make_folder(const std::string& path) {
  const std::lock_guard lock(disk_->mutex);
  disk_->check(Call::make_folder, path);
  const std::string key = key_of(path);
  for (std::string part = key; part.find('/') != std::string::npos && part.size() > 1; part = parent_path(part)) {
    const auto found = disk_->nodes.find(part);
    if (found != disk_->nodes.end() && !found->second->folder) throw Error(ErrorCode::io, path + ": Not a directory");
  }
  disk_->make_folders(key);
}

void MemoryFileSystem::remove_file(const std::string& path) {
  const std::lock_guard lock(disk_->mutex);
  disk_->check(Call::remove_file, path);
  if (disk_->links.erase(normal(path)) != 0) return;
  const auto found = disk_->nodes.find(key_of(path));
  if (found == disk_->nodes.end()) return;
  if (found->second->folder) throw Error(ErrorCode::io, path + ": Is a directory");
  disk_->nodes.erase(found);
}

void MemoryFileSystem::remove_folder(const std::string& path) {
  const std::lock_guard lock(disk_->mutex);
  disk_->check(Call::remove_folder, path);
  const std::string key = key_of(path);
  std::erase_if(disk_->nodes, [&](const auto& entry) { return entry.first == key || below(entry.first, key); });
  std::erase_if(disk_->links, [&](const auto& entry) { return below(entry.first, normal(path)); });
}

void MemoryFileSystem::rename(const std::string& from, const std::string& to) {
  const std::lock_guard lock(disk_->mutex);
  disk_->check(Call::rename, from);
  const std::string source = key_of(from), target = key_of(to);
  const auto moved = disk_->nodes.find(source), replaced = disk_->nodes.find(target);
  if (moved == disk_->nodes.end() || !status(parent_path(to)))
    throw Error(ErrorCode::io, from + ": renaming failed: No such file or directory");
  if (status_of_key(source)->device != status(parent_path(to))->device)
    throw Error(ErrorCode::io, from + ": renaming failed: Invalid cross-device link");
  if (replaced != disk_->nodes.end()) {
    if (replaced->second->folder != moved->second->folder) throw Error(ErrorCode::io, from + ": renaming failed: Is a directory");
    const bool full = std::any_of(disk_->nodes.begin(), disk_->nodes.end(), [&](const auto& entry) { return below(entry.first, target); });
    if (full) throw Error(ErrorCode::io, from + ": renaming failed: Directory not empty");
  }
  std::map<std::string, std::shared_ptr<Node>> renamed;
  for (const auto& [key, node] : disk_->nodes) {
    if (key == source || below(key, source)) renamed[target + key.substr(source.size())] = node;
  }
  std::erase_if(disk_->nodes, [&](const auto& entry) { return entry.first == source || below(entry.first, source); });
  for (const auto& [key, node] : renamed) disk_->nodes[key] = node;
}

void MemoryFileSystem::sync_folder(const std::string& path) {
  const std::lock_guard lock(disk_->mutex);
  disk_->check(Call::sync_folder, path);
}

std::uint64_t MemoryFileSystem::free_bytes(const std::string& path) {
  const std::lock_guard lock(disk_->mutex);
  if (!status_of_key(key_of(path))) throw Error(ErrorCode::io, path + ": No such file or directory");
  return disk_->capacity - std::min(disk_->capacity, disk_->used());
}

}  // namespace unshard::test
