#include "read_back.h"

#include <string>
#include <string_view>

#include "crc32c.h"
#include "unshard/error.h"

namespace unshard {
namespace {

std::string hexadecimal(std::uint32_t value) {
  constexpr std::string_view digits = "0123456789abcdef";
  std::string text;
  for (int shift = 28; shift >= 0; shift -= 4) text += digits[value >> shift & 15];
  return text;
}

}  // namespace

std::uint32_t checksum_of_written(File& file, std::uint64_t position, std::span<std::byte> buffer, std::uint32_t before) {
  try {
    file.read_at(position, buffer);
  } catch (const Error& error) {  // of an input, a file that is too short would be called bad
    throw Error(error.code() == ErrorCode::bad_input ? ErrorCode::verification : error.code(), error.what());
  }
  return crc32c(buffer, before);
}

void require_as_written(const File& file, const Extent& extent, std::uint32_t found) {
  if (found == extent.crc32c) return;
  throw Error(ErrorCode::verification, printable(file.path(), 4096) + ": bytes " + std::to_string(extent.begin) + " to " +
                                           std::to_string(extent.end) + " are not what was written (CRC-32C " + hexadecimal(found) +
                                           ", expected " + hexadecimal(extent.crc32c) +
                                           "); the file system or MPI-IO lost or changed data");
}

}  // namespace unshard
