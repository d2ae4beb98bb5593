// Patterns for names: `*` any text, `?` one character, `[a-z]` and `[!a-z]` sets. Linear in pattern × name, whatever the stars.
#include <algorithm>

#include "names.h"
#include "unshard/mapping.h"

namespace unshard {
namespace {

/// Whether `c` is in the set that begins at pattern[at] (after the bracket); moves `at` behind the closing bracket. False and unmoved when
/// the set is not closed.
bool in_set(std::string_view pattern, std::size_t& at, char c, bool& closed) {
  std::size_t i = at;
  const bool negated = i < pattern.size() && (pattern[i] == '!' || pattern[i] == '^');
  if (negated) ++i;
  bool found = false;
  bool first = true;
  for (; i < pattern.size() && (first || pattern[i] != ']'); first = false) {
    const char low = pattern[i++];
    char high = low;
    if (i + 1 < pattern.size() && pattern[i] == '-' && pattern[i + 1] != ']') {
      high = pattern[i + 1];
      i += 2;
    }
    const auto value = [](char letter) { return static_cast<unsigned char>(letter); };
    found = found || (value(low) <= value(c) && value(c) <= value(high));
  }
  closed = i < pattern.size();
  if (closed) at = i + 1;
  return closed && found != negated;
}

/// Matches one character of `name` against the pattern's element at `at`, which is no `*`; moves `at` on.
bool matches_one(std::string_view pattern, std::size_t& at, char c) {
  const char element = pattern[at];
  if (element == '[') {
    std::size_t after = at + 1;
    bool closed = false;
    const bool found = in_set(pattern, after, c, closed);
    if (closed) {
      at = after;
      return found;
    }
  }
  ++at;
  return element == '?' || element == c;
}

}  // namespace

bool glob_matches(std::string_view pattern, std::string_view name) {
  std::size_t at = 0;
  std::size_t star = std::string_view::npos;  // behind the last `*`, and the name's end that it has taken so far
  std::size_t taken = 0;
  std::size_t i = 0;
  while (i < name.size()) {
    if (at < pattern.size() && pattern[at] == '*') {
      star = ++at;
      taken = i;
    } else if (at < pattern.size() && matches_one(pattern, at, name[i])) {
      ++i;
    } else if (star != std::string_view::npos) {
      at = star;
      i = ++taken;
    } else {
      return false;
    }
  }
  while (at < pattern.size() && pattern[at] == '*') ++at;
  return at == pattern.size();
}

bool any_glob_matches(const std::vector<std::string>& globs, std::string_view name) {
  return std::any_of(globs.begin(), globs.end(), [&](const std::string& glob) { return glob_matches(glob, name); });
}

}  // namespace unshard
