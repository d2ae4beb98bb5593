#include "tracker.h"

#include <algorithm>

namespace unshard {
namespace {

bool is_number(std::string_view text) {
  return !text.empty() && text.size() <= 18 && std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

/// Names under which trainers keep step `number`.
std::vector<std::string> step_names(const std::string& number) {
  const std::string seven_digits = std::string(number.size() < 7 ? 7 - number.size() : 0, '0') + number;
  return {"global_step_" + number, "iter_" + seven_digits, "checkpoint-" + number,
          "global_step" + number,  "step_" + number,       "step-" + number};
}

}  // namespace

bool is_tracker(std::string_view file_name) {
  return file_name == "latest" || file_name == "latest_checkpointed_iteration.txt";
}

std::string_view trimmed(std::string_view text) {
  const std::string_view space = " \t\r\n";
  const std::size_t first = text.find_first_not_of(space);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(space) - first + 1);
}

std::optional<std::string> tracked_folder(std::string_view text, const std::vector<std::string>& folders) {
  const std::string name(trimmed(text));
  std::vector<std::string> names{name};
  if (is_number(name)) {
    const auto steps = step_names(name);
    names.insert(names.end(), steps.begin(), steps.end());
  }
  for (const std::string& candidate : names) {
    if (std::find(folders.begin(), folders.end(), candidate) != folders.end()) return candidate;
  }
  return std::nullopt;
}

}  // namespace unshard
