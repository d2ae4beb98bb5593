// Kinds of options: what a value may be, for any command.
#pragma once

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "unshard/error.h"

namespace unshard {

/// Throws Error(usage).
[[noreturn]] void refuse(const std::string& text);

template <class Names>
[[nodiscard]] bool holds(const Names& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

template <class Names>
[[nodiscard]] std::string listed(const Names& names) {
  std::string text;
  for (const auto& name : names) text += (text.empty() ? "" : ", ") + std::string(name);
  return text;
}

/// `value` must be one of `known` (else usage) and one of `able` (else unsupported).
template <class Known>
void check_choice(const std::string& option, const std::string& value, const Known& known, const std::vector<std::string>& able) {
  if (holds(able, value)) return;
  if (!holds(known, value)) refuse(option + ": '" + printable(value) + "' is none of " + listed(known));
  throw Error(ErrorCode::unsupported, "options: " + option + " " + value + " is not supported by this version; it has " + listed(able));
}

void need_text(const std::string& option, const std::string& value);

/// What a command can't do without. Not CLI11's own check: that comes before the one for unknown words, and would hide a misspelt name.
void need(const std::string& command, std::initializer_list<std::pair<const char*, bool>> options);

/// An option with one text, which must not be empty.
CLI::Option* add_text(CLI::App& app, const std::string& names, std::string& to, const std::string& help);
CLI::Option* add_folder(CLI::App& app, const std::string& names, std::string& to, const std::string& help);

/// An option that may be given several times, each time with one text.
CLI::Option* add_list(CLI::App& app, const std::string& name, std::vector<std::string>& to, const std::string& help);

CLI::Option* add_size(CLI::App& app, const std::string& name, std::uint64_t& to, const std::string& help);

/// A whole number of 1 or more.
CLI::Option* add_count(CLI::App& app, const std::string& name, std::function<void(std::uint64_t)> set, const std::string& help);

/// An option whose value is one of few words; what each of them means.
template <class Value>
using Choices = std::vector<std::pair<const char*, Value>>;

template <class Value>
CLI::Option* add_choice(CLI::App& app, const std::string& name, Value& to, const Choices<Value>& choices, const std::string& help) {
  const auto set = [&to, name, choices](const std::string& value) {
    std::vector<std::string> words;
    for (const auto& [word, meaning] : choices) {
      if (value == word) {
        to = meaning;
        return;
      }
      words.emplace_back(word);
    }
    refuse(name + ": '" + printable(value) + "' is none of " + listed(words));
  };
  return app.add_option_function<std::string>(name, set, help);
}

}  // namespace unshard
