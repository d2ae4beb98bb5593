#include "arguments.h"

#include <algorithm>
#include <string_view>

#include "unshard/error.h"

namespace unshard {

namespace {

struct Later {
  std::string_view word;
  std::string_view advice;
};

constexpr Later later_options[] = {
    {"--quantize", "merge without it and quantise the result"},
    {"--html", "leave it out; --json gives the same facts"},
    {"--hf-upload-path", "merge, then run: hf upload REPO TARGET_DIR"},
};

std::string_view name_of_option(std::string_view argument) {
  return argument.substr(0, argument.find('='));
}

[[noreturn]] void refuse(const Later& later) {
  throw Error(ErrorCode::unsupported,
              "options: " + std::string(later.word) + " is not supported by this version; " + std::string(later.advice));
}

}  // namespace

std::vector<std::string> with_hyphens(std::vector<std::string> arguments) {
  for (std::string& argument : arguments) {
    if (argument == "--") break;
    if (argument.rfind("--", 0) != 0) continue;
    const auto name_end = argument.begin() + static_cast<std::ptrdiff_t>(name_of_option(argument).size());
    std::replace(argument.begin(), name_end, '_', '-');
  }
  return arguments;
}

void refuse_what_comes_later(const std::vector<std::string>& arguments) {
  if (arguments.empty()) return;
  for (const std::string& argument : arguments) {
    if (argument == "--") return;
    for (const Later& later : later_options) {
      if (name_of_option(argument) == later.word) refuse(later);
    }
  }
}

}  // namespace unshard
