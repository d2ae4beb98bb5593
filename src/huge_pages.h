// Fewer page faults in large arrays that are filled soon: half a million chunk records take 130 MB, of which each first touch of 4 KiB costs
// as much as the reading of it (a cached check of them: 0.25 s instead of 0.30 s).
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>

namespace unshard {

/// Local. A hint, for memory that nobody has touched.
inline void prefer_huge_pages(void* data, std::size_t bytes) {
  constexpr std::uintptr_t huge = std::uintptr_t{2} << 20;
  const auto first = reinterpret_cast<std::uintptr_t>(data);
  const std::uintptr_t begin = (first + huge - 1) / huge * huge, end = (first + bytes) / huge * huge;
  if (begin < end) ::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
}

}  // namespace unshard
