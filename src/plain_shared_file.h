// A SharedFile without MPI: each rank has its own descriptor and writes its own range.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "unshard/comm.h"
#include "unshard/file_system.h"

namespace unshard {

/// Most bytes of one message and of one collective write: far below where MPI libraries count in `int`.
inline constexpr std::uint64_t most_bytes_per_call = std::uint64_t{256} << 20;

/// Local. Throws Error(internal) for more than most_bytes_per_call; `what` names the call.
void check_call_size(std::uint64_t size_bytes, const char* what);

class PlainSharedFile final : public SharedFile {
 public:
  /// `meet` is called at the end of each collective call; it returns when all ranks have called it.
  PlainSharedFile(std::unique_ptr<File> file, std::function<void(const std::string& call)> meet);
  void write_at_all(std::uint64_t position, std::span<const std::byte> from) override;
  void close() override;

 private:
  std::unique_ptr<File> file_;
  std::string path_;
  std::function<void(const std::string& call)> meet_;
};

}  // namespace unshard
