#include "unshard/file_cache.h"

#include <sys/resource.h>

#include <algorithm>
#include <utility>

namespace unshard {
namespace {

std::size_t half_of_descriptor_limit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return 512;
  return std::clamp<std::size_t>(limit.rlim_cur / 2, 8, 4096);
}

}  // namespace

FileCache::FileCache(FileSystem& system, const Source& source, std::size_t limit)
    : system_(system), source_(source), limit_(limit == 0 ? half_of_descriptor_limit() : limit) {}

FileCache::FileCache(FileSystem& system, const Source& source, WorkLimits limits) : FileCache(system, source) {
  limits_ = std::move(limits);
}

std::shared_ptr<File> FileCache::get(std::uint32_t file) {
  const std::lock_guard lock(mutex_);
  if (const auto found = open_.find(file); found != open_.end()) {
    order_.splice(order_.begin(), order_, found->second.used);
    return found->second.file;
  }
  if (open_.size() >= limit_) {
    open_.erase(order_.back());
    order_.pop_back();
  }
  std::shared_ptr<File> opened = system_.open_for_reading(source_.files.at(file).path);
  order_.push_front(file);
  open_.emplace(file, Entry{opened, order_.begin()});
  return opened;
}

}  // namespace unshard
