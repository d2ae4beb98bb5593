// Disks for tests: a scratch folder, and a file system that shows each node its own part of it.
#pragma once

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>

#include "unshard/file_system.h"

namespace unshard::test {

/// A fresh folder that goes away with the value.
class ScratchFolder {
 public:
  ScratchFolder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "unshard-XXXXXX").string();
    path_ = mkdtemp(pattern.data());
  }
  ~ScratchFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;

  [[nodiscard]] const std::string& path() const { return path_; }
  /// Writes a file, with its folders.
  void write(const std::string& name, const std::string& content) const {
    const std::filesystem::path path = std::filesystem::path(path_) / name;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path, std::ios::binary) << content;
  }
  void copy(const std::filesystem::path& from, const std::string& name) const {
    const std::filesystem::path path = std::filesystem::path(path_) / name;
    std::filesystem::create_directories(path.parent_path());
    std::filesystem::copy(from, path, std::filesystem::copy_options::recursive);
  }

 private:
  std::string path_;
};

/// What a node sees: the path `/a/b` is `<disk>/a/b` of the real disk, so that two nodes have different files under one name.
class NodeFiles final : public FileSystem {
 public:
  explicit NodeFiles(std::string disk) : disk_(std::move(disk)), real_(posix_file_system()) {}

  std::unique_ptr<File> open_for_reading(const std::string& path) override { return real_->open_for_reading(disk_ + path); }
  std::unique_ptr<File> open_for_writing(const std::string& path, bool create) override {
    return real_->open_for_writing(disk_ + path, create);
  }
  std::optional<FileStatus> status(const std::string& path) override { return real_->status(disk_ + path); }
  std::vector<FolderEntry> list(const std::string& folder) override { return real_->list(disk_ + folder); }
  void make_folder(const std::string& path) override { real_->make_folder(disk_ + path); }
  void remove_file(const std::string& path) override { real_->remove_file(disk_ + path); }
  void remove_folder(const std::string& path) override { real_->remove_folder(disk_ + path); }
  void rename(const std::string& from, const std::string& to) override { real_->rename(disk_ + from, disk_ + to); }
  void sync_folder(const std::string& path) override { real_->sync_folder(disk_ + path); }
  std::uint64_t free_bytes(const std::string& path) override { return real_->free_bytes(disk_ + path); }
  std::string canonical(const std::string& path) override {
    const std::string real = real_->canonical(disk_ + path);
    return real.starts_with(disk_) ? real.substr(disk_.size()) : real;
  }
  [[nodiscard]] const IoCounters& counters() const override { return real_->counters(); }

 private:
  std::string disk_;
  std::unique_ptr<FileSystem> real_;
};

}  // namespace unshard::test
