#include "plain_shared_file.h"

#include <string>

#include "unshard/error.h"

namespace unshard {

void check_call_size(std::uint64_t size_bytes, const char* what) {
  if (size_bytes <= most_bytes_per_call) return;
  throw Error(ErrorCode::internal, std::string(what) + " of " + std::to_string(size_bytes) + " bytes; at most " +
                                       std::to_string(most_bytes_per_call) + " are allowed in one call");
}

void PlainSharedFile::write_at_all(std::uint64_t position, std::span<const std::byte> from) {
  check_call_size(from.size(), "a collective write");
  if (!from.empty()) file_->write_at(position, from);
}

}  // namespace unshard
