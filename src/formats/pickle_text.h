// Texts in pickles: the forms of protocol 0: quoted strings, raw-unicode-escape, decimal numbers (CPython Lib/pickletools.py: stringnl,
// unicodestringnl, decimalnl_*), and names of Python 2.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace unshard::pickle {

/// Local. The content of a Python string literal with its quotes ('a\n'); none when the quotes do not match.
[[nodiscard]] std::optional<std::string> unquoted(std::string_view literal);

/// Local. Text with \uXXXX and \UXXXXXXXX escapes, otherwise Latin-1, as UTF-8.
[[nodiscard]] std::string from_unicode_escape(std::string_view escaped);

/// Local. A decimal number of 64 bits, with or without Python 2's final L; none for anything else.
[[nodiscard]] std::optional<std::int64_t> decimal(std::string_view digits);

struct QualifiedName {
  std::string_view module, name;
};
/// Local. What Python 3 makes of a name in a pickle of protocol 0, 1 or 2: `__builtin__` is `builtins`, `commands` is `subprocess` …
[[nodiscard]] QualifiedName python3_name(std::string_view module, std::string_view name);

}  // namespace unshard::pickle
