// The text of a progress bar or line: pure, so that it can be tested without a terminal or a clock.
#pragma once

#include <cstdint>
#include <string>

namespace unshard {

struct Progress {
  std::string what;
  std::uint64_t done_bytes = 0;
  std::uint64_t total_bytes = 0;
  double seconds = 0;
};

/// `12.3 MB`: three digits and a decimal unit.
[[nodiscard]] std::string short_bytes(double bytes);
/// `Writing: 50 % of 2000000 bytes, 1.00 MB/s, 0:01 left`.
[[nodiscard]] std::string progress_line(const Progress& progress);
/// The same as a bar that fits into 79 columns.
[[nodiscard]] std::string progress_bar(const Progress& progress);

}  // namespace unshard
