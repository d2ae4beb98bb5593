// NaNs and infinities among stored elements, for `check --deep`.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "unshard/catalog.h"

namespace unshard {

/// Local, pure. Of elements of `dtype` (little-endian, one after the other); 0 for types that have neither. A complex element counts for
/// each of its parts.
[[nodiscard]] NonFinite count_non_finite(std::span<const std::byte> elements, DType dtype);

/// The same for elements that come in pieces cut anywhere.
class NonFiniteCounter {
 public:
  explicit NonFiniteCounter(DType dtype) : dtype_(dtype) {}
  void add(std::span<const std::byte> bytes);
  [[nodiscard]] const NonFinite& total() const { return total_; }

 private:
  void count(std::span<const std::byte> elements);

  DType dtype_;
  NonFinite total_;
  std::array<std::byte, 16> begun_{};  ///< the first bytes of an element that is not complete
  std::size_t begun_bytes_ = 0;
};

}  // namespace unshard
