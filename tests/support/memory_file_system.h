// A disk in memory that can fail: full, unreadable, broken at a chosen call, lying, and another one on every node.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "unshard/error.h"
#include "unshard/file_system.h"

namespace unshard::test {

enum class Call : std::uint8_t {
  open_for_reading,
  open_for_writing,
  read,
  write,
  reserve,
  drop_cache,
  sync,
  status,
  list,
  make_folder,
  remove_file,
  remove_folder,
  rename,
  sync_folder
};

/// What the views share: files, links, faults. Internal to MemoryFileSystem.
struct MemoryDisk;

/// One node's view of a disk. Views made by other_node() share files and faults. Paths are absolute; `/` exists.
class MemoryFileSystem final : public FileSystem {
 public:
  MemoryFileSystem();
  /// The view of a node for which everything below `local_folders` lies on disks of its own (empty at first).
  [[nodiscard]] std::unique_ptr<MemoryFileSystem> other_node(std::vector<std::string> local_folders) const;

  // Set-up and inspection; never fail.
  void put(const std::string& path, const std::string& content);  ///< makes parents
  void link(const std::string& path, const std::string& to);      ///< a symbolic link, to a file or folder or (dead) to nothing
  [[nodiscard]] bool exists(const std::string& path) const;
  [[nodiscard]] std::string content(const std::string& path) const;              ///< "" when it is not there
  [[nodiscard]] std::vector<std::string> tree(const std::string& folder) const;  ///< paths of all files below it, relative, sorted

  // Faults.
  void set_capacity(std::uint64_t bytes);                            ///< of all files together; beyond it Error(no_space)
  void set_can_reserve(bool can);                                    ///< false: reserve() only sets the length
  void set_nfs(bool is) { nfs_ = is; }                               ///< of this view
  void set_device(const std::string& folder, std::uint64_t device);  ///< a mount point: what is below has this device number
  /// Calls of this kind on paths that contain `path_part` throw Error(code), after the first `skip` of them. Lasts until heal().
  void fail(Call call, std::string path_part, std::uint64_t skip = 0, ErrorCode code = ErrorCode::io);
  /// The `count`-th call (from 0) of those that change the disk, and all later ones, throw Error(io): the program was killed there.
  void fail_changes_after(std::uint64_t count);
  [[nodiscard]] std::uint64_t changes() const;     ///< such calls so far
  void lie(std::string path_part);                 ///< writes to such paths report success and change nothing
  void at_drop_cache(std::function<void()> call);  ///< to be set before there are threads; each drop_cache takes as long as this
  void heal();                                     ///< removes all faults but the capacity

  std::unique_ptr<File> open_for_reading(const std::string& path) override;
  std::unique_ptr<File> open_for_writing(const std::string& path, bool create) override;
  std::optional<FileStatus> status(const std::string& path) override;
  std::vector<FolderEntry> list(const std::string& folder) override;
  void make_folder(const std::string& path) override;
  void remove_file(const std::string& path) override;
  void remove_folder(const std::string& path) override;
  void rename(const std::string& from, const std::string& to) override;
  void sync_folder(const std::string& path) override;
  std::uint64_t free_bytes(const std::string& path) override;
  bool is_nfs(const std::string&) override { return nfs_; }
  std::string canonical(const std::string& path) override;
  [[nodiscard]] const IoCounters& counters() const override { return counters_; }

 private:
  friend class MemoryFile;
  MemoryFileSystem(std::shared_ptr<MemoryDisk> disk, int node, std::vector<std::string> local_folders);
  [[nodiscard]] std::string key_of(const std::string& path) const;
  [[nodiscard]] std::optional<FileStatus> status_of_key(const std::string& key) const;

  std::shared_ptr<MemoryDisk> disk_;
  int node_ = 0;
  bool nfs_ = false;
  std::vector<std::string> local_folders_;
  IoCounters counters_;
};

}  // namespace unshard::test
