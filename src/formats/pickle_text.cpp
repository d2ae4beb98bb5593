#include "formats/pickle_text.h"

#include <array>
#include <charconv>
#include <utility>

namespace unshard::pickle {
namespace {

void append_utf8(std::string& to, std::uint32_t code) {
  const auto tail = [&](unsigned shift) { to += static_cast<char>(0x80 | ((code >> shift) & 0x3F)); };
  if (code < 0x80) {
    to += static_cast<char>(code);
  } else if (code < 0x800) {
    to += static_cast<char>(0xC0 | (code >> 6));
    tail(0);
  } else if (code < 0x10000) {
    to += static_cast<char>(0xE0 | (code >> 12));
    tail(6), tail(0);
  } else {
    to += static_cast<char>(0xF0 | ((code >> 18) & 0x07));
    tail(12), tail(6), tail(0);
  }
}

/// `count` digits of `base` at `at`; moves `at` behind them.
std::optional<std::uint32_t> digits(std::string_view text, std::size_t& at, std::size_t count, int base) {
  if (text.size() - at < count) return std::nullopt;
  std::uint32_t value = 0;
  const char* end = text.data() + at + count;
  const auto [stop, error] = std::from_chars(text.data() + at, end, value, base);
  if (error != std::errc{} || stop != end) return std::nullopt;
  at += count;
  return value;
}

void append_escape(std::string& to, std::string_view text, std::size_t& at) {
  static constexpr std::array<std::pair<char, char>, 10> simple{
      {{'n', '\n'}, {'t', '\t'}, {'r', '\r'}, {'\\', '\\'}, {'\'', '\''}, {'"', '"'}, {'a', '\a'}, {'b', '\b'}, {'f', '\f'}, {'v', '\v'}}};
  const char letter = text[at++];
  for (const auto& [name, value] : simple) {
    if (letter == name) {
      to += value;
      return;
    }
  }
  if (letter == 'x') {
    if (const auto value = digits(text, at, 2, 16)) {
      to += static_cast<char>(*value);
      return;
    }
  }
  to += '\\';
  to += letter;
}

}  // namespace

std::optional<std::string> unquoted(std::string_view literal) {
  if (literal.size() < 2 || literal.front() != literal.back() || (literal.front() != '\'' && literal.front() != '"')) return std::nullopt;
  literal = literal.substr(1, literal.size() - 2);
  std::string text;
  for (std::size_t at = 0; at < literal.size();) {
    const char letter = literal[at++];
    if (letter == '\\' && at < literal.size()) {
      append_escape(text, literal, at);
    } else {
      text += letter;
    }
  }
  return text;
}

std::string from_unicode_escape(std::string_view escaped) {
  std::string text;
  for (std::size_t at = 0; at < escaped.size();) {
    const auto letter = static_cast<unsigned char>(escaped[at++]);
    if (letter == '\\' && at < escaped.size() && (escaped[at] == 'u' || escaped[at] == 'U')) {
      std::size_t behind = at + 1;
      if (const auto code = digits(escaped, behind, escaped[at] == 'u' ? 4 : 8, 16)) {
        append_utf8(text, *code);
        at = behind;
        continue;
      }
    }
    append_utf8(text, letter);
  }
  return text;
}

std::optional<std::int64_t> decimal(std::string_view digits_text) {
  if (!digits_text.empty() && digits_text.back() == 'L') digits_text.remove_suffix(1);
  std::int64_t value = 0;
  const char* end = digits_text.data() + digits_text.size();
  const auto [stop, error] = std::from_chars(digits_text.data(), end, value);
  if (error != std::errc{} || stop != end) return std::nullopt;
  return value;
}

}  // namespace unshard::pickle
