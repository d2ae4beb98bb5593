// NaNs and infinities in stored tensors, for `check --deep`.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "unshard/catalog.h"
#include "unshard/file_cache.h"

namespace unshard {

struct NonFinite {
  std::uint64_t nan = 0;
  std::uint64_t infinite = 0;
};

/// Local, pure. Of elements of `dtype` (little-endian, one after the other); 0 for types that have neither. A complex element counts for
/// each of its parts.
[[nodiscard]] NonFinite count_non_finite(std::span<const std::byte> elements, DType dtype);

/// Collective. By tensor, the same on every rank; each file is read by one rank that sees it, in order of position.
[[nodiscard]] std::vector<NonFinite> count_non_finite(Comm& comm, FileCache& files, const Source& source, const Catalog& catalog);

}  // namespace unshard
