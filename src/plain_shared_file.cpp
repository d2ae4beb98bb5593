#include "plain_shared_file.h"

#include <optional>
#include <utility>

#include "unshard/agree.h"
#include "unshard/error.h"

namespace unshard {

void check_call_size(std::uint64_t size_bytes, const char* what) {
  if (size_bytes <= most_bytes_per_call) return;
  throw Error(ErrorCode::internal, std::string(what) + " of " + std::to_string(size_bytes) + " bytes; at most " +
                                       std::to_string(most_bytes_per_call) + " are allowed in one call");
}

PlainSharedFile::PlainSharedFile(std::unique_ptr<File> file, std::function<void(const std::string&)> meet)
    : file_(std::move(file)), path_(file_->path()), meet_(std::move(meet)) {}

void PlainSharedFile::write_at_all(std::uint64_t position, std::span<const std::byte> from) {
  const std::optional<Error> failure = attempt([&] {
    check_call_size(from.size(), "a collective write");
    if (!from.empty()) file_->write_at(position, from);
  });
  meet_("write_at_all on " + path_);
  if (failure) throw Error(*failure);
}

void PlainSharedFile::close() {
  file_.reset();
  meet_("close of " + path_);
}

}  // namespace unshard
