#include "unshard/file_system.h"

#include "descriptor.h"
#include "unshard/error.h"

namespace unshard {
namespace {

class NoLock final : public FileLock {
 public:
  void write(std::string_view) override {}
};

}  // namespace

LockAttempt FileSystem::try_lock(const std::string&) {
  return {LockOutcome::held, std::make_unique<NoLock>()};
}

std::unique_ptr<File> FileSystem::adopt(int descriptor, const std::string& path) {
  const Descriptor taken(descriptor);
  throw Error(ErrorCode::internal, printable(path, 4096) + ": a file of another process was given to a disk that has none");
}

bool FileSystem::is_nfs(const std::string&) {
  return false;
}

std::string read_small_file(FileSystem& files, const std::string& path, std::uint64_t limit_bytes) {
  const auto file = files.open_for_reading(path);
  if (file->size() > limit_bytes) {
    throw Error(ErrorCode::bad_input, printable(path, 4096) + ": has " + std::to_string(file->size()) + " bytes, at most " +
                                          std::to_string(limit_bytes) + " were expected");
  }
  std::string text(static_cast<std::size_t>(file->size()), '\0');
  file->read_at(0, std::as_writable_bytes(std::span(text)));
  return text;
}

std::string join_path(std::string_view folder, std::string_view name) {
  if (folder.empty()) return std::string(name);
  std::string path(folder);
  if (path.back() != '/') path += '/';
  return path += name;
}

std::string_view base_name(std::string_view path) {
  const auto slash = path.rfind('/');
  return slash == std::string_view::npos ? path : path.substr(slash + 1);
}

std::string parent_path(std::string_view path) {
  const auto slash = path.rfind('/');
  if (slash == std::string_view::npos) return ".";
  return slash == 0 ? "/" : std::string(path.substr(0, slash));
}

}  // namespace unshard
