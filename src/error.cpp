#include "unshard/error.h"

#include <array>

namespace unshard {
namespace {

struct CodeName {
  ErrorCode code;
  std::string_view name;
};
constexpr std::array code_names{
    CodeName{ErrorCode::internal, "internal"},
    CodeName{ErrorCode::usage, "usage"},
    CodeName{ErrorCode::bad_input, "bad_input"},
    CodeName{ErrorCode::unsupported, "unsupported"},
    CodeName{ErrorCode::io, "io"},
    CodeName{ErrorCode::no_space, "no_space"},
    CodeName{ErrorCode::mpi, "mpi"},
    CodeName{ErrorCode::verification, "verification"},
};

/// Length of the well-formed UTF-8 sequence at the start of `text`; 0 when there is none (Unicode standard, table 3-7).
std::size_t utf8_length(std::string_view text) {
  const auto at = [&](std::size_t i) { return i < text.size() ? static_cast<unsigned char>(text[i]) : 0U; };
  const auto continues = [&](std::size_t i) { return (at(i) & 0xC0U) == 0x80U; };
  const unsigned first = at(0);
  if (first < 0x80U) return 1;
  if (first >= 0xC2U && first <= 0xDFU) return continues(1) ? 2 : 0;
  if (first >= 0xE0U && first <= 0xEFU) {
    const bool overlong = first == 0xE0U && at(1) < 0xA0U;
    const bool surrogate = first == 0xEDU && at(1) > 0x9FU;
    return continues(1) && continues(2) && !overlong && !surrogate ? 3 : 0;
  }
  if (first >= 0xF0U && first <= 0xF4U) {
    const bool overlong = first == 0xF0U && at(1) < 0x90U;
    const bool beyond = first == 0xF4U && at(1) > 0x8FU;
    return continues(1) && continues(2) && continues(3) && !overlong && !beyond ? 4 : 0;
  }
  return 0;
}

/// C0 and C1 controls, delete, and the bidirectional marks that can reorder a line on a terminal.
bool is_control(std::string_view character) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(character[i]); };
  if (character.size() == 1) return byte(0) < 0x20U || byte(0) == 0x7FU;
  if (character.size() == 2) return byte(0) == 0xC2U && byte(1) < 0xA0U;
  if (character.size() == 3 && byte(0) == 0xE2U && byte(1) == 0x80U)
    return (byte(2) >= 0x8EU && byte(2) <= 0x8FU) || (byte(2) >= 0xA8U && byte(2) <= 0xAEU);
  if (character.size() == 3 && byte(0) == 0xE2U && byte(1) == 0x81U) return byte(2) >= 0xA6U && byte(2) <= 0xA9U;
  return false;
}

void append_hex(std::string& out, std::string_view bytes) {
  constexpr std::string_view digits = "0123456789abcdef";
  for (const char c : bytes) {
    const auto value = static_cast<unsigned char>(c);
    out += "\\x";
    out += digits[value >> 4U];
    out += digits[value & 15U];
  }
}

}  // namespace

std::string_view name_of(ErrorCode code) {
  for (const CodeName& row : code_names) {
    if (row.code == code) return row.name;
  }
  return static_cast<int>(code) > 128 ? "signal" : "unknown";
}

std::string printable(std::string_view text, std::size_t limit) {
  std::string out;
  for (std::size_t i = 0; i < text.size();) {
    if (out.size() >= limit) return out + "...";
    const std::size_t length = utf8_length(text.substr(i));
    const std::string_view character = text.substr(i, length == 0 ? 1 : length);
    if (length == 0 || is_control(character)) {
      append_hex(out, character);
    } else {
      out += character;
    }
    i += character.size();
  }
  return out;
}

std::string as_ranges(const std::vector<std::uint64_t>& numbers, std::size_t most) {
  std::string out;
  std::size_t ranges = 0;
  for (std::size_t i = 0; i < numbers.size();) {
    if (ranges == most) return out + " and " + std::to_string(numbers.size() - i) + " more";
    std::size_t last = i;
    while (last + 1 < numbers.size() && numbers[last + 1] == numbers[last] + 1) ++last;
    if (ranges++ > 0) out += ", ";
    out += std::to_string(numbers[i]);
    if (last > i) out += "-" + std::to_string(numbers[last]);
    i = last + 1;
  }
  return out;
}

std::string name_list(const std::vector<std::string>& names, std::size_t most) {
  std::string out;
  for (std::size_t i = 0; i < names.size() && i < most; ++i) {
    if (i > 0) out += ", ";
    out += printable(names[i]);
  }
  if (names.size() > most) out += " and " + std::to_string(names.size() - most) + " more";
  return out;
}

std::string counted(std::uint64_t count, std::string_view noun) {
  return std::to_string(count) + " " + std::string(noun) + (count == 1 ? "" : "s");
}

}  // namespace unshard
