// The SharedFile of a rank that is alone: a plain file.
#pragma once

#include <memory>

#include "unshard/comm.h"
#include "unshard/file_system.h"

namespace unshard {

/// Local. Throws Error(internal) for more than most_bytes_per_call; `what` names the call.
void check_call_size(std::uint64_t size_bytes, const char* what);

class PlainSharedFile final : public SharedFile {
 public:
  explicit PlainSharedFile(std::unique_ptr<File> file) : file_(std::move(file)) {}
  void write_at_all(std::uint64_t position, std::span<const std::byte> from) override;
  void close() override { file_.reset(); }

 private:
  std::unique_ptr<File> file_;
};

}  // namespace unshard
