#include "progress.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>

namespace unshard {

namespace {

constexpr std::size_t bar_width = 24;
constexpr std::size_t longest_name = 16;

double fraction(const Progress& progress) {
  if (progress.total_bytes == 0) return 1;
  return std::min(1.0, static_cast<double>(progress.done_bytes) / static_cast<double>(progress.total_bytes));
}

std::string percent(const Progress& progress) {
  return std::to_string(static_cast<int>(fraction(progress) * 100)) + " %";
}

double bytes_per_second(const Progress& progress) {
  return progress.seconds > 0 ? static_cast<double>(progress.done_bytes) / progress.seconds : 0;
}

/// `, 1.00 MB/s, 0:01 left`; the time left is unknown before the first byte.
std::string speed_and_rest(const Progress& progress) {
  const double speed = bytes_per_second(progress);
  std::string text = ", " + short_bytes(speed) + "/s";
  if (speed <= 0 || progress.done_bytes >= progress.total_bytes) return text;
  const auto left = static_cast<std::uint64_t>(std::ceil(static_cast<double>(progress.total_bytes - progress.done_bytes) / speed));
  std::array<char, 48> clock{};
  if (left >= 3600) {
    std::snprintf(clock.data(), clock.size(), "%llu:%02llu:%02llu", static_cast<unsigned long long>(left / 3600),
                  static_cast<unsigned long long>(left / 60 % 60), static_cast<unsigned long long>(left % 60));
  } else {
    std::snprintf(clock.data(), clock.size(), "%llu:%02llu", static_cast<unsigned long long>(left / 60),
                  static_cast<unsigned long long>(left % 60));
  }
  return text + ", " + clock.data() + " left";
}

}  // namespace

std::string short_bytes(double bytes) {
  constexpr std::array units = {"B", "kB", "MB", "GB", "TB", "PB", "EB"};
  std::size_t unit = 0;
  while (bytes >= 999.5 && unit + 1 < units.size()) {
    bytes /= 1000;
    ++unit;
  }
  const int decimals = unit == 0 || bytes >= 99.95 ? 0 : bytes >= 9.995 ? 1 : 2;
  std::array<char, 64> text{};
  std::snprintf(text.data(), text.size(), "%.*f %s", decimals, bytes, units[unit]);
  return text.data();
}

std::string progress_line(const Progress& progress) {
  return progress.what + ": " + percent(progress) + " of " + std::to_string(progress.total_bytes) + " bytes" + speed_and_rest(progress);
}

std::string progress_bar(const Progress& progress) {
  const auto filled = static_cast<std::size_t>(fraction(progress) * bar_width);
  return progress.what.substr(0, longest_name) + " [" + std::string(filled, '#') + std::string(bar_width - filled, '.') + "] " +
         percent(progress) + speed_and_rest(progress);
}

}  // namespace unshard
