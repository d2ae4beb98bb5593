#include "sizes.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <limits>
#include <string>

#include "unshard/error.h"

namespace unshard {

namespace {

struct Unit {
  std::string_view name;  // in lower case
  std::uint64_t bytes;
};

constexpr std::uint64_t kilo = 1000, kibi = 1024;
constexpr Unit units[] = {
    {"", 1},
    {"b", 1},
    {"k", kilo},
    {"kb", kilo},
    {"m", kilo* kilo},
    {"mb", kilo* kilo},
    {"g", kilo* kilo* kilo},
    {"gb", kilo* kilo* kilo},
    {"t", kilo* kilo* kilo* kilo},
    {"tb", kilo* kilo* kilo* kilo},
    {"kib", kibi},
    {"mib", kibi* kibi},
    {"gib", kibi* kibi* kibi},
    {"tib", kibi* kibi* kibi* kibi},
};

[[noreturn]] void refuse(std::string_view text, std::string_view option) {
  throw Error(ErrorCode::usage, "usage: " + std::string(option) + ": '" + printable(text) +
                                    "' is no size; write a whole number with a unit, such as 256MiB or 5GB");
}

}  // namespace

std::uint64_t parse_size(std::string_view text, std::string_view option) {
  std::uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc{}) refuse(text, option);
  std::string name(end, text.data() + text.size());
  std::transform(name.begin(), name.end(), name.begin(), [](unsigned char letter) { return static_cast<char>(std::tolower(letter)); });
  const auto unit = std::find_if(std::begin(units), std::end(units), [&](const Unit& known) { return known.name == name; });
  if (unit == std::end(units) || number > std::numeric_limits<std::uint64_t>::max() / unit->bytes) refuse(text, option);
  if (number == 0) throw Error(ErrorCode::usage, "usage: " + std::string(option) + ": must be more than 0 bytes");
  return number * unit->bytes;
}

}  // namespace unshard
