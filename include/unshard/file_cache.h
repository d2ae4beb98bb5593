// Open files, at most so many at a time: parsing and moving share the descriptors, so that a rank opens a shard once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "unshard/file_system.h"
#include "unshard/source.h"
#include "unshard/work_limits.h"

namespace unshard {

/// Local. How many files a FileCache has open at the same time, unless it is told: half of the process's limit of descriptors.
[[nodiscard]] std::size_t most_open_files();

/// Local. Least recently used files are closed when more than `limit` are open. Thread-safe. The files are those of a Source, by number;
/// the Source must outlive the cache and may grow at its end.
class FileCache {
 public:
  /// `limit` 0: most_open_files().
  FileCache(FileSystem& system, const Source& source, std::size_t limit = 0);
  /// With limits for the steps that read these files.
  FileCache(FileSystem& system, const Source& source, WorkLimits limits);
  /// The open file; stays valid while the pointer is held, even if the cache has dropped it.
  [[nodiscard]] std::shared_ptr<File> get(std::uint32_t file);
  /// Takes in a file that was opened elsewhere, unless it is open here.
  void put(std::uint32_t file, std::shared_ptr<File> opened);
  [[nodiscard]] FileSystem& system() { return system_; }
  [[nodiscard]] const Source& source() const { return source_; }
  [[nodiscard]] const WorkLimits& limits() const { return limits_; }

 private:
  void insert(std::uint32_t file, std::shared_ptr<File> opened);  ///< with the lock held

  struct Entry {
    std::shared_ptr<File> file;
    std::list<std::uint32_t>::iterator used;
  };
  FileSystem& system_;
  const Source& source_;
  std::size_t limit_;
  WorkLimits limits_;
  std::mutex mutex_;
  std::list<std::uint32_t> order_;  ///< most recently used first
  std::unordered_map<std::uint32_t, Entry> open_;
};

}  // namespace unshard
