// Byte counts as people write them.
#pragma once

#include <cstdint>
#include <string_view>

namespace unshard {

/// Local. `5GB` (decimal units kB, MB, GB, TB, also K, M, G, T), `256MiB` (binary units), `1000` (bytes), in any case. Throws Error(usage)
/// naming `option`.
[[nodiscard]] std::uint64_t parse_size(std::string_view text, std::string_view option);

}  // namespace unshard
