// The real disk, to be derived from by one that is different in a call or two.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "unshard/file_system.h"

namespace unshard::testing {

class RealDisk : public FileSystem {
 public:
  std::unique_ptr<File> open_for_reading(const std::string& path) override { return disk_->open_for_reading(path); }
  std::unique_ptr<File> open_for_writing(const std::string& path, bool create) override { return disk_->open_for_writing(path, create); }
  std::optional<FileStatus> status(const std::string& path) override { return disk_->status(path); }
  std::vector<FolderEntry> list(const std::string& path) override { return disk_->list(path); }
  void make_folder(const std::string& path) override { disk_->make_folder(path); }
  void remove_file(const std::string& path) override { disk_->remove_file(path); }
  void remove_folder(const std::string& path) override { disk_->remove_folder(path); }
  void rename(const std::string& from, const std::string& to) override { disk_->rename(from, to); }
  void sync_folder(const std::string& path) override { disk_->sync_folder(path); }
  LockAttempt try_lock(const std::string& path) override { return disk_->try_lock(path); }
  std::uint64_t free_bytes(const std::string& path) override { return disk_->free_bytes(path); }
  bool is_nfs(const std::string& path) override { return disk_->is_nfs(path); }
  std::string canonical(const std::string& path) override { return disk_->canonical(path); }
  [[nodiscard]] const IoCounters& counters() const override { return disk_->counters(); }

 private:
  std::unique_ptr<FileSystem> disk_ = posix_file_system();
};

}  // namespace unshard::testing
