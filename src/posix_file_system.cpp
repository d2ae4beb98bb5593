// The real disk: explicit reads and writes with pread and pwrite, never mmap (the source may lie on a network mount).
#include <fcntl.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <mutex>
#include <system_error>

#include "descriptor.h"
#include "unshard/error.h"
#include "unshard/file_system.h"

namespace unshard {
namespace {

[[noreturn]] void fail(const std::string& path, const std::string& what, int number) {
  const bool full = number == ENOSPC || number == EDQUOT;
  const std::string advice = full ? "; free space on the file system or choose another --target-dir" : "";
  throw Error(full ? ErrorCode::no_space : ErrorCode::io, printable(path, 4096) + ": " + what + ": " + std::strerror(number) + advice);
}

class PosixFile final : public File {
 public:
  PosixFile(std::string path, Descriptor descriptor, bool writable, std::shared_ptr<IoCounters> counters)
      : path_(std::move(path)), descriptor_(std::move(descriptor)), writable_(writable), counters_(std::move(counters)) {
    size_bytes_ = current_size();
    takes_turns_ = writable && !takes_parallel_writes();
  }

  [[nodiscard]] const std::string& path() const override { return path_; }
  [[nodiscard]] int descriptor() const override { return descriptor_.number(); }
  [[nodiscard]] std::uint64_t size() const override { return writable_ ? current_size() : size_bytes_; }

  void read_at(std::uint64_t position, std::span<std::byte> to) override {
    while (!to.empty()) {
      const ssize_t count = ::pread(descriptor_.number(), to.data(), to.size(), static_cast<off_t>(position));
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) fail(path_, "reading " + std::to_string(to.size()) + " bytes at " + std::to_string(position) + " failed", errno);
      if (count == 0) {
        throw Error(ErrorCode::bad_input, printable(path_, 4096) + ": the file ends at byte " + std::to_string(position) + ", but " +
                                              std::to_string(to.size()) + " more were expected; it is truncated or being written");
      }
      counters_->reads.fetch_add(1, std::memory_order_relaxed);
      counters_->read_bytes.fetch_add(static_cast<std::uint64_t>(count), std::memory_order_relaxed);
      to = to.subspan(static_cast<std::size_t>(count));
      position += static_cast<std::uint64_t>(count);
    }
  }

  void write_at(std::uint64_t position, std::span<const std::byte> from) override {
    std::unique_lock one_at_a_time(writing_, std::defer_lock);
    if (takes_turns_) one_at_a_time.lock();
    while (!from.empty()) {
      const ssize_t count = ::pwrite(descriptor_.number(), from.data(), from.size(), static_cast<off_t>(position));
      if (count < 0 && errno == EINTR) continue;
      if (count <= 0)
        fail(path_, "writing " + std::to_string(from.size()) + " bytes at " + std::to_string(position) + " failed",
             count < 0 ? errno : ENOSPC);
      counters_->writes.fetch_add(1, std::memory_order_relaxed);
      counters_->written_bytes.fetch_add(static_cast<std::uint64_t>(count), std::memory_order_relaxed);
      from = from.subspan(static_cast<std::size_t>(count));
      position += static_cast<std::uint64_t>(count);
    }
  }

  bool reserve(std::uint64_t size_bytes) override {
    if (::ftruncate(descriptor_.number(), static_cast<off_t>(size_bytes)) != 0)
      fail(path_, "setting the length to " + std::to_string(size_bytes) + " bytes failed", errno);
    if (size_bytes == 0) return true;
    int result = 0;
    do {
      result = ::fallocate(descriptor_.number(), 0, 0, static_cast<off_t>(size_bytes));
    } while (result != 0 && errno == EINTR);
    if (result == 0) return true;
    if (errno == EOPNOTSUPP || errno == ENOSYS || errno == EINVAL) return false;
    fail(path_, "reserving " + std::to_string(size_bytes) + " bytes failed", errno);
  }

  void start_writeback(std::uint64_t position, std::uint64_t length) override {
    ::sync_file_range(descriptor_.number(), static_cast<off64_t>(position), static_cast<off64_t>(length), SYNC_FILE_RANGE_WRITE);
  }

  void drop_cache(std::uint64_t position, std::uint64_t length) override {
    constexpr unsigned wait = SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER;
    const int result = ::sync_file_range(descriptor_.number(), static_cast<off64_t>(position), static_cast<off64_t>(length), wait);
    const bool cant = errno == ENOSYS || errno == EINVAL || errno == EOPNOTSUPP || errno == ESPIPE;
    if (result != 0 && !cant) fail_writing_back("writing back failed", errno);
    ::posix_fadvise(descriptor_.number(), static_cast<off_t>(position), static_cast<off_t>(length), POSIX_FADV_DONTNEED);
  }

  void sync() override {
    if (::fsync(descriptor_.number()) != 0) fail_writing_back("fsync failed", errno);
  }

 private:
  /// The kernel tells of a lost write once, and keeps its pages as if they were on the device: a later fsync would not hear of it, and who
  /// resumes would find them right. So they must go.
  [[noreturn]] void fail_writing_back(const std::string& what, int number) {
    ::posix_fadvise(descriptor_.number(), 0, 0, POSIX_FADV_DONTNEED);
    fail(path_, what, number);
  }

  /// Their clients lock ranges of a file; all others of Linux let one thread at a time into the page cache of a file that is written.
  [[nodiscard]] bool takes_parallel_writes() const {
    constexpr unsigned long lustre = 0x0BD00BD0, gpfs = 0x47504653;
    struct statfs status {};
    if (::fstatfs(descriptor_.number(), &status) != 0) return false;
    const auto kind = static_cast<unsigned long>(status.f_type) & 0xFFFFFFFFUL;
    return kind == lustre || kind == gpfs;
  }

  [[nodiscard]] std::uint64_t current_size() const {
    struct stat status {};
    if (::fstat(descriptor_.number(), &status) != 0) fail(path_, "fstat failed", errno);
    return static_cast<std::uint64_t>(status.st_size);
  }

  std::string path_;
  Descriptor descriptor_;  // closed without a look at the result: written data was synced, or the file is given up
  bool writable_;
  std::uint64_t size_bytes_ = 0;
  std::shared_ptr<IoCounters> counters_;  // an open file may outlive the file system
  bool takes_turns_ = false;
  /// Who waits for his turn in the kernel spins, and takes the core from those that read. Here he sleeps: 3 GB by two ranks of four threads
  /// on two cores took 2.5 s of processor time instead of 4.5 s (ext4, Linux 6.18).
  std::mutex writing_;
};

FileStatus from_stat(const struct stat& status) {
  const FileKind kind = S_ISREG(status.st_mode) ? FileKind::file : S_ISDIR(status.st_mode) ? FileKind::folder : FileKind::other;
  return {kind, static_cast<std::uint64_t>(status.st_size), status.st_mtim.tv_sec * std::int64_t{1'000'000'000} + status.st_mtim.tv_nsec,
          static_cast<std::uint64_t>(status.st_ino), static_cast<std::uint64_t>(status.st_dev)};
}

/// A lock of the open file (F_OFD_SETLK): the kernel takes it back when the process ends; NFS and Lustre pass it on to other nodes.
class PosixLock final : public FileLock {
 public:
  PosixLock(std::string path, Descriptor descriptor) : path_(std::move(path)), descriptor_(std::move(descriptor)) {}
  ~PosixLock() override {
    // The file says nothing about a run that has ended; if that fails the next run decides by the lock.
    (void)::ftruncate(descriptor_.number(), 0);
  }
  PosixLock(const PosixLock&) = delete;
  PosixLock& operator=(const PosixLock&) = delete;

  void write(std::string_view text) override {
    const int descriptor = descriptor_.number();
    const bool written = ::ftruncate(descriptor, 0) == 0 && ::pwrite(descriptor, text.data(), text.size(), 0) >= 0;
    if (!written) fail(path_, "writing failed", errno);
  }

 private:
  std::string path_;
  Descriptor descriptor_;
};

/// Takes the write lock of a whole file.
LockOutcome lock_descriptor(const std::string& path, int descriptor) {
  struct flock region {};
  region.l_type = F_WRLCK;
  region.l_whence = SEEK_SET;
  int result = 0;
  do {
    result = ::fcntl(descriptor, F_OFD_SETLK, &region);
  } while (result != 0 && errno == EINTR);
  if (result == 0) return LockOutcome::held;
  if (errno == EAGAIN || errno == EACCES) return LockOutcome::busy;
  if (errno == ENOSYS || errno == ENOLCK || errno == EOPNOTSUPP || errno == EINVAL) return LockOutcome::unknown;
  fail(path, "locking failed", errno);
}

class PosixFileSystem final : public FileSystem {
 public:
  std::unique_ptr<File> open_for_reading(const std::string& path) override {
    // A named pipe in place of a shard must not block the job.
    const int descriptor = open_descriptor(path, O_RDONLY | O_NONBLOCK, "opening for reading failed");
    auto file = std::make_unique<PosixFile>(path, Descriptor(descriptor), false, counters_);
    struct stat status {};
    if (::fstat(descriptor, &status) == 0 && !S_ISREG(status.st_mode)) {
      const std::string kind = S_ISDIR(status.st_mode) ? "a folder" : "not a regular file";
      throw Error(ErrorCode::bad_input, printable(path, 4096) + ": is " + kind + ", a file was expected");
    }
    ::posix_fadvise(descriptor, 0, 0, POSIX_FADV_SEQUENTIAL);
    return file;
  }

  std::unique_ptr<File> adopt(int descriptor, const std::string& path) override {
    return std::make_unique<PosixFile>(path, Descriptor(descriptor), false, counters_);
  }

  std::unique_ptr<File> open_for_writing(const std::string& path, bool create) override {
    // In a folder that others may write into (/tmp, scratch) a link may lead to a file of this user.
    const int flags = O_RDWR | O_NOFOLLOW | (create ? O_CREAT | O_TRUNC : 0);
    return std::make_unique<PosixFile>(path, Descriptor(open_descriptor(path, flags, "opening for writing failed")), true, counters_);
  }

  std::optional<FileStatus> status(const std::string& path) override {
    struct stat status {};
    if (::stat(path.c_str(), &status) == 0) return from_stat(status);
    if (errno == ENOENT || errno == ENOTDIR || errno == ELOOP) return std::nullopt;
    fail(path, "stat failed", errno);
  }

  std::vector<FolderEntry> list(const std::string& folder) override {
    std::vector<FolderEntry> entries;
    std::error_code error;
    std::filesystem::directory_iterator iterator(folder, error);
    for (; !error && iterator != std::filesystem::directory_iterator(); iterator.increment(error)) {
      struct stat status {};
      const std::string path = iterator->path().string();
      entries.push_back(
          {iterator->path().filename().string(), ::stat(path.c_str(), &status) == 0 ? from_stat(status) : FileStatus{FileKind::other}});
    }
    if (error) fail(folder, "reading the folder failed", error.value());
    std::sort(entries.begin(), entries.end(), [](const FolderEntry& a, const FolderEntry& b) { return a.name < b.name; });
    return entries;
  }

  void make_folder(const std::string& path) override {
    std::error_code error;
    std::filesystem::create_directories(path, error);
    if (error) fail(path, "making the folder failed", error.value());
  }

  void remove_file(const std::string& path) override {
    if (::unlink(path.c_str()) != 0 && errno != ENOENT) fail(path, "removing the file failed", errno);
  }

  void remove_folder(const std::string& path) override {
    std::error_code error;
    std::filesystem::remove_all(path, error);
    if (error) fail(path, "removing the folder failed", error.value());
  }

  void rename(const std::string& from, const std::string& to) override {
    if (::rename(from.c_str(), to.c_str()) != 0) fail(from, "renaming to " + printable(to, 4096) + " failed", errno);
  }

  void sync_folder(const std::string& path) override {
    const int descriptor = open_descriptor(path, O_RDONLY | O_DIRECTORY, "opening the folder failed");
    const int number = ::fsync(descriptor) == 0 ? 0 : errno;
    ::close(descriptor);
    if (number != 0 && number != EINVAL)
      fail(path, "fsync of the folder failed", number);  // EINVAL: the file system has nothing to sync there
  }

  LockAttempt try_lock(const std::string& path) override {
    constexpr int most_tries = 10;
    for (int tries = 0;; ++tries) {
      Descriptor descriptor(open_descriptor(path, O_RDWR | O_CREAT | O_NOFOLLOW, "opening for locking failed"));
      const LockOutcome outcome = lock_descriptor(path, descriptor.number());
      if (outcome == LockOutcome::busy) return {outcome, nullptr};
      // Whoever held it before may have removed or renamed the file since it was opened here.
      struct stat opened {
      }, there{};
      const bool same = ::fstat(descriptor.number(), &opened) == 0 && ::lstat(path.c_str(), &there) == 0 && opened.st_ino == there.st_ino;
      if (same || tries == most_tries) return {outcome, std::make_unique<PosixLock>(path, std::move(descriptor))};
    }
  }

  std::uint64_t free_bytes(const std::string& path) override {
    struct statvfs status {};
    if (::statvfs(path.c_str(), &status) != 0) fail(path, "statvfs failed", errno);
    return static_cast<std::uint64_t>(status.f_bavail) * status.f_frsize;
  }

  bool is_nfs(const std::string& path) override {
    struct statfs status {};
    if (::statfs(path.c_str(), &status) != 0) fail(path, "statfs failed", errno);
    return status.f_type == NFS_SUPER_MAGIC;
  }

  std::string canonical(const std::string& path) override {
    std::error_code error;
    const auto result = std::filesystem::weakly_canonical(std::filesystem::absolute(path), error);
    if (error) fail(path, "resolving the path failed", error.value());
    const std::string text = result.string();
    return text.size() > 1 && text.back() == '/' ? text.substr(0, text.size() - 1) : text;
  }

  [[nodiscard]] const IoCounters& counters() const override { return *counters_; }

 private:
  int open_descriptor(const std::string& path, int flags, const char* what) {
    int descriptor = -1;
    do {
      descriptor = ::open(path.c_str(), flags | O_CLOEXEC, 0666);
    } while (descriptor < 0 && errno == EINTR);
    if (descriptor < 0 && errno == ELOOP && (flags & O_NOFOLLOW) != 0)
      throw Error(ErrorCode::io, printable(path, 4096) + ": " + what + ": it is a link, and nothing is written through links; remove it");
    if (descriptor < 0) fail(path, what, errno);
    counters_->opens.fetch_add(1, std::memory_order_relaxed);
    return descriptor;
  }

  std::shared_ptr<IoCounters> counters_ = std::make_shared<IoCounters>();
};

}  // namespace

std::unique_ptr<FileSystem> posix_file_system() {
  return std::make_unique<PosixFileSystem>();
}

}  // namespace unshard
