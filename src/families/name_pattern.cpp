#include "families/name_pattern.h"

#include <algorithm>
#include <charconv>

#include "unshard/error.h"

namespace unshard {
namespace {

constexpr std::size_t longest_number = 18;

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

/// Length of the number at the start of `text`; 0 when there is none, or one that Python would write otherwise.
std::size_t number_length(std::string_view text) {
  std::size_t length = 0;
  while (length < text.size() && is_digit(text[length])) ++length;
  if (length > longest_number || (length > 1 && text.front() == '0')) return 0;
  return length;
}

/// Sets a variable; false when it already stands for something else.
bool capture(Captures& captures, const std::string& variable, std::string_view value) {
  if (const std::string* known = find_capture(captures, variable)) return *known == value;
  captures.emplace_back(variable, value);
  return true;
}

}  // namespace

bool is_computed(std::string_view variable) {
  return std::any_of(variable.begin(), variable.end(),
                     [](char c) { return c == ' ' || c == '+' || c == '*' || c == '/' || c == '-' || c == '('; });
}

std::uint64_t number_of(std::string_view digits) {
  std::uint64_t value = 0;
  std::from_chars(digits.data(), digits.data() + digits.size(), value);
  return value;
}

const std::string* find_capture(const Captures& captures, std::string_view variable) {
  for (const auto& [name, value] : captures) {
    if (name == variable) return &value;
  }
  return nullptr;
}

NamePattern NamePattern::parse(std::string_view text, const std::string& label) {
  NamePattern pattern;
  pattern.text_ = text;
  std::size_t any_count = 0;
  std::size_t at = 0;
  while (at < text.size()) {
    const std::size_t open = text.find('{', at);
    if (open != at)
      pattern.elements_.push_back(
          {std::string(text.substr(at, open == std::string_view::npos ? open : open - at)), Element::Kind::literal});
    if (open == std::string_view::npos) break;
    const std::size_t close = text.find('}', open);
    std::string variable(text.substr(open + 1, close == std::string_view::npos ? 0 : close - open - 1));
    const bool any = !variable.empty() && variable.back() == '*';
    if (any) {
      variable.pop_back();
      ++any_count;
    }
    if (variable.empty())
      throw Error(ErrorCode::bad_input, label + ": '" + printable(text) + "' has a variable without a name; write {l} or {rest*}");
    if (std::find(pattern.variables_.begin(), pattern.variables_.end(), variable) == pattern.variables_.end())
      pattern.variables_.push_back(variable);
    pattern.elements_.push_back({std::move(variable), any ? Element::Kind::any : Element::Kind::number});
    at = close + 1;
  }
  if (any_count > 1) throw Error(ErrorCode::bad_input, label + ": '" + printable(text) + "' has more than one {…*}");
  return pattern;
}

bool NamePattern::match_from(std::size_t element, std::string_view rest, Captures& captures) const {
  for (; element < elements_.size(); ++element) {
    const Element& wanted = elements_[element];
    if (wanted.kind == Element::Kind::literal) {
      if (rest.substr(0, wanted.text.size()) != wanted.text) return false;
      rest.remove_prefix(wanted.text.size());
    } else if (wanted.kind == Element::Kind::number) {
      const std::size_t length = number_length(rest);
      if (length == 0 || !capture(captures, wanted.text, rest.substr(0, length))) return false;
      rest.remove_prefix(length);
    } else {
      for (std::size_t length = rest.size(); length > 0; --length) {
        Captures tried = captures;
        if (capture(tried, wanted.text, rest.substr(0, length)) && match_from(element + 1, rest.substr(length), tried)) {
          captures = std::move(tried);
          return true;
        }
      }
      return false;
    }
  }
  return rest.empty();
}

std::optional<Captures> NamePattern::match(std::string_view name) const {
  Captures captures;
  if (!match_from(0, name, captures)) return std::nullopt;
  return captures;
}

std::string NamePattern::fill(const Captures& captures) const {
  std::string name;
  for (const Element& element : elements_) {
    if (element.kind == Element::Kind::literal) {
      name += element.text;
    } else if (const std::string* value = find_capture(captures, element.text)) {
      name += *value;
    } else {
      throw Error(ErrorCode::internal, printable(text_) + ": nothing stands for {" + element.text + "}");
    }
  }
  return name;
}

}  // namespace unshard
