#include "collective_file.h"

#include <fcntl.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <optional>

#include "checked.h"
#include "plain_shared_file.h"
#include "unshard/agree.h"
#include "unshard/error.h"

namespace unshard {

namespace {

class Info {
 public:
  Info() { check(MPI_Info_create(&info_), "MPI_Info_create"); }
  ~Info() { MPI_Info_free(&info_); }
  Info(const Info&) = delete;
  Info& operator=(const Info&) = delete;
  void set(const std::string& key, const std::string& value) {
    const int code = MPI_Info_set(info_, key.c_str(), value.c_str());
    if (code != MPI_SUCCESS) throw Error(ErrorCode::usage, "--mpi-info " + key + "=" + value + ": " + mpi_text(code));
  }
  [[nodiscard]] MPI_Info get() const { return info_; }

 private:
  MPI_Info info_ = MPI_INFO_NULL;
};

void check_can_open(const std::string& path) {
  const int descriptor = open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (descriptor < 0) throw Error(ErrorCode::io, path + ": can't be opened for writing: " + std::strerror(errno));
  close(descriptor);
}

bool is_full(const std::string& path, std::uint64_t wanted_bytes) {
  struct statvfs status {};
  if (statvfs(path.c_str(), &status) != 0) return false;
  return static_cast<std::uint64_t>(status.f_bavail) * status.f_frsize < wanted_bytes;
}

class CollectiveFile final : public SharedFile {
 public:
  explicit CollectiveFile(std::string path) : path_(std::move(path)) {}
  // Closing is collective, and a destructor can't know whether the other ranks close too: what is not closed is left to MPI_Finalize.
  ~CollectiveFile() override = default;

  /// Collective. Returns what MPI does.
  [[nodiscard]] int open(MPI_Comm comm, MPI_Info info) { return MPI_File_open(comm, path_.c_str(), MPI_MODE_RDWR, info, &file_); }
  void write_at_all(std::uint64_t position, std::span<const std::byte> from) override;
  void close() override {
    const int code = MPI_File_close(&file_);
    if (code != MPI_SUCCESS) throw Error(code_for(code, 0), path_ + ": MPI_File_close: " + mpi_text(code));
  }

 private:
  /// MPI-IO mostly says MPI_ERR_IO, whatever the reason.
  [[nodiscard]] ErrorCode code_for(int code, std::uint64_t wanted_bytes) const {
    int kind = MPI_ERR_OTHER;
    if (code != MPI_SUCCESS) MPI_Error_class(code, &kind);
    const bool no_space = kind == MPI_ERR_NO_SPACE || kind == MPI_ERR_QUOTA || is_full(path_, wanted_bytes);
    return no_space ? ErrorCode::no_space : ErrorCode::io;
  }

  std::string path_;
  MPI_File file_ = MPI_FILE_NULL;
};

void CollectiveFile::write_at_all(std::uint64_t position, std::span<const std::byte> from) {
  std::optional<Error> failure = attempt([&] { check_call_size(from.size(), "a collective write"); });
  if (failure) from = {};  // the others are in the call already
  MPI_Status status;
  std::memset(&status, 0, sizeof status);
  const int code = MPI_File_write_at_all(file_, static_cast<MPI_Offset>(position), from.data(), to_int(from.size()), MPI_BYTE, &status);
  if (failure) throw Error(*failure);
  const std::string where = path_ + ": " + std::to_string(from.size()) + " bytes at " + std::to_string(position) + " could not be written";
  if (code != MPI_SUCCESS) throw Error(code_for(code, from.size()), where + ": " + mpi_text(code));
  if (from.empty()) return;
  int written = 0;
  check(MPI_Get_count(&status, MPI_BYTE, &written), "MPI_Get_count");
  if (written == MPI_UNDEFINED || static_cast<std::uint64_t>(written) != from.size()) {
    throw Error(code_for(MPI_SUCCESS, from.size()), where + ": MPI-IO wrote " + std::to_string(written));
  }
}

}  // namespace

std::unique_ptr<SharedFile> open_collective_file(Comm& comm, MPI_Comm handle, const std::string& path,
                                                 const std::vector<std::pair<std::string, std::string>>& hints) {
  std::unique_ptr<CollectiveFile> file;  // made before it is opened: nothing may fail on one rank alone once all have opened it
  const auto info = collectively(comm, "open", [&] {
    check_can_open(path);
    file = std::make_unique<CollectiveFile>(path);
    auto made = std::make_unique<Info>();
    for (const auto& [key, value] : hints) made->set(key, value);
    return made;
  });
  const int code = file->open(handle, info->get());
  agree(comm, "open",
        code == MPI_SUCCESS ? std::nullopt : std::optional(Error(ErrorCode::io, path + ": MPI_File_open: " + mpi_text(code))));
  return file;
}

}  // namespace unshard
