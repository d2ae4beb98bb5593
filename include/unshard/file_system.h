// The one seam to the disk. The program uses PosixFileSystem; tests use an in-memory one, one that fails and one that lies.
// All functions are Local, thread-safe, and throw Error(io | no_space | bad_input) whose text starts with the path.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace unshard {

enum class FileKind : std::uint8_t { file, folder, other };

struct FileStatus {
  FileKind kind = FileKind::file;  ///< links are followed
  std::uint64_t size_bytes = 0;
  std::int64_t mtime_ns = 0;
  std::uint64_t inode = 0;
  std::uint64_t device = 0;
};

struct FolderEntry {
  std::string name;   ///< without the folder
  FileStatus status;  ///< of what a link points to; kind `other` for a dead link
};

/// An open file. Positions and lengths in bytes. Reading and writing at disjoint places is allowed from several threads.
class File {
 public:
  virtual ~File() = default;
  [[nodiscard]] virtual const std::string& path() const = 0;
  /// Stays the file's own; another process may be given it (FileSystem::adopt). -1 where the kernel knows nothing of this file.
  [[nodiscard]] virtual int descriptor() const { return -1; }
  /// As it was when opened (for reading) or is now (for writing).
  [[nodiscard]] virtual std::uint64_t size() const = 0;
  /// Fills `to`. Throws Error(bad_input) naming both sizes when the file ends before; Error(io) when the read fails.
  virtual void read_at(std::uint64_t position, std::span<std::byte> to) = 0;
  /// Writes all of `from`. Throws Error(no_space) or Error(io).
  virtual void write_at(std::uint64_t position, std::span<const std::byte> from) = 0;
  /// Makes the file `size_bytes` long and reserves its blocks, without writing zeros (fallocate(2)); where the file system can't, only
  /// the length is set. Throws Error(no_space). Returns whether blocks are reserved.
  virtual bool reserve(std::uint64_t size_bytes) = 0;
  /// Starts write-back of a written range and returns at once. A hint.
  virtual void start_writeback(std::uint64_t position, std::uint64_t length) = 0;
  /// Waits until the range is written back, whoever wrote it on this node, then drops it from the page cache. A hint; but throws Error(io |
  /// no_space) when the device refused what was written.
  virtual void drop_cache(std::uint64_t position, std::uint64_t length) = 0;
  /// fsync. Every error counts: NFS and delayed allocation report lost writes here.
  virtual void sync() = 0;
};

/// A file that only one process at a time holds. The lock ends with this object, or with the process, however it ends.
class FileLock {
 public:
  virtual ~FileLock() = default;
  /// Replaces what the file says: who holds it.
  virtual void write(std::string_view text) = 0;
};

/// `held`: `lock` is there. `unknown`: the file system has no locks; `lock` is there, but another process may have one too.
enum class LockOutcome : std::uint8_t { held, busy, unknown };
struct LockAttempt {
  LockOutcome outcome = LockOutcome::unknown;
  std::unique_ptr<FileLock> lock;
};

/// How often the disk was asked, for --verbose, --json and tests.
struct IoCounters {
  std::atomic<std::uint64_t> opens{0}, reads{0}, read_bytes{0}, writes{0}, written_bytes{0};
};

class FileSystem {
 public:
  virtual ~FileSystem() = default;
  [[nodiscard]] virtual std::unique_ptr<File> open_for_reading(const std::string& path) = 0;
  /// A file for reading that another process has opened. Takes the descriptor over, also when it throws, as it does by default.
  [[nodiscard]] virtual std::unique_ptr<File> adopt(int descriptor, const std::string& path);
  /// Opens for reading and writing; `create` makes the file or truncates it. A link in the last place of the path is not followed.
  [[nodiscard]] virtual std::unique_ptr<File> open_for_writing(const std::string& path, bool create) = 0;
  /// None when nothing is there (or a dead link, or a link to itself).
  [[nodiscard]] virtual std::optional<FileStatus> status(const std::string& path) = 0;
  /// Sorted by name. Throws Error(io) when the folder can't be read.
  [[nodiscard]] virtual std::vector<FolderEntry> list(const std::string& folder) = 0;
  virtual void make_folder(const std::string& path) = 0;    ///< with parents; existing ones are fine
  virtual void remove_file(const std::string& path) = 0;    ///< nothing there: fine
  virtual void remove_folder(const std::string& path) = 0;  ///< with all in it; links are removed, not followed
  virtual void rename(const std::string& from, const std::string& to) = 0;
  virtual void sync_folder(const std::string& path) = 0;
  /// Locks the file `path`, which is made when it isn't there; does not wait. By default nobody else ever holds a lock.
  [[nodiscard]] virtual LockAttempt try_lock(const std::string& path);
  [[nodiscard]] virtual std::uint64_t free_bytes(const std::string& path) = 0;
  /// Whether an existing path lies on NFS. By default not.
  [[nodiscard]] virtual bool is_nfs(const std::string& path);
  /// The absolute path without links, `.` and `..`; the longest existing part is resolved, the rest appended.
  [[nodiscard]] virtual std::string canonical(const std::string& path) = 0;
  [[nodiscard]] virtual const IoCounters& counters() const = 0;
};

/// The real disk.
[[nodiscard]] std::unique_ptr<FileSystem> posix_file_system();

/// The whole of a small file. Throws Error(bad_input) when it is larger than `limit_bytes`.
[[nodiscard]] std::string read_small_file(FileSystem& files, const std::string& path, std::uint64_t limit_bytes);

[[nodiscard]] std::string join_path(std::string_view folder, std::string_view name);
[[nodiscard]] std::string_view base_name(std::string_view path);
[[nodiscard]] std::string parent_path(std::string_view path);

}  // namespace unshard
