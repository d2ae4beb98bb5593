// SHA-256, by OpenSSL: of texts (the fingerprint of a command) and of whole files (the report).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "unshard/file_system.h"

namespace unshard {

/// Local. In lower-case hexadecimal digits.
[[nodiscard]] std::string sha256_hex(std::string_view text);

/// Local. Of a whole file, read in pieces of 1 MiB.
[[nodiscard]] std::string sha256_hex(File& file);

}  // namespace unshard
