#include "unshard/file_cache.h"

#include <sys/resource.h>

#include <algorithm>
#include <utility>

namespace unshard {

std::size_t most_open_files() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return 512;
  return std::clamp<std::size_t>(limit.rlim_cur / 2, 8, 4096);
}

FileCache::FileCache(FileSystem& system, const Source& source, std::size_t limit)
    : system_(system), source_(source), limit_(limit == 0 ? most_open_files() : limit) {}

FileCache::FileCache(FileSystem& system, const Source& source, WorkLimits limits) : FileCache(system, source) {
  limits_ = std::move(limits);
}

std::shared_ptr<File> FileCache::get(std::uint32_t file) {
  const std::lock_guard lock(mutex_);
  if (const auto found = open_.find(file); found != open_.end()) {
    order_.splice(order_.begin(), order_, found->second.used);
    return found->second.file;
  }
  std::shared_ptr<File> opened = system_.open_for_reading(source_.files.at(file).path);
  insert(file, opened);
  return opened;
}

void FileCache::put(std::uint32_t file, std::shared_ptr<File> opened) {
  const std::lock_guard lock(mutex_);
  if (!open_.contains(file)) insert(file, std::move(opened));
}

void FileCache::insert(std::uint32_t file, std::shared_ptr<File> opened) {
  if (open_.size() >= limit_) {
    open_.erase(order_.back());
    order_.pop_back();
  }
  order_.push_front(file);
  open_.emplace(file, Entry{std::move(opened), order_.begin()});
}

}  // namespace unshard
