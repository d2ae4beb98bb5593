// run_config.yaml, in which Megatron-Bridge keeps the settings of a run (src/megatron/bridge/training/utils/checkpoint_utils.py,
// CONFIG_FILE; written by yaml.safe_dump, one key a line). Only one block of it is read:
//
//     peft:
//       _target_: megatron.bridge.peft.lora.LoRA
//       alpha: 32
//       dim: 16
//       target_modules:
//       - linear_qkv
//
// This is no YAML reader: what is written in another form gives no alpha, and then the user is asked for it.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>

#include "unshard/lora.h"

namespace unshard {
namespace {

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t' || text.back() == '\r')) text.remove_suffix(1);
  return text;
}

/// Takes the first line off.
std::string_view next_line(std::string_view& text) {
  const std::size_t end = std::min(text.find('\n'), text.size());
  const std::string_view line = text.substr(0, end);
  text.remove_prefix(std::min(end + 1, text.size()));
  return line;
}

bool is_blank(std::string_view line) {
  line = trimmed(line);
  return line.empty() || line.front() == '#';
}

std::optional<double> number_in(std::string_view text) {
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc{} || end != text.data() + text.size() || !std::isfinite(number)) return std::nullopt;
  return number;
}

/// The numbers of the lines `key: value` directly below the block's head; a key that is there twice has none.
std::map<std::string, std::optional<double>, std::less<>> numbers_below(std::string_view text) {
  std::map<std::string, std::optional<double>, std::less<>> numbers;
  std::size_t indent = 0;
  while (!text.empty()) {
    std::string_view line = next_line(text);
    if (is_blank(line)) continue;
    const std::size_t depth = line.find_first_not_of(' ');
    if (depth == 0) break;
    if (indent == 0) indent = depth;
    if (depth != indent) continue;
    line = line.substr(0, std::min(line.find(" #"), line.size()));
    const std::size_t colon = line.find(':');
    if (colon == std::string_view::npos) continue;
    const auto [place, is_new] = numbers.emplace(std::string(trimmed(line.substr(0, colon))), number_in(trimmed(line.substr(colon + 1))));
    if (!is_new) place->second.reset();
  }
  return numbers;
}

}  // namespace

std::optional<AdapterConfig> parse_bridge_config(std::string_view text, const std::string& path) {
  while (!text.empty()) {
    const std::string_view line = next_line(text);
    if (!line.starts_with("peft:")) continue;
    if (trimmed(line.substr(5)) == "null") return std::nullopt;
    AdapterConfig config;
    config.path = path;
    const auto numbers = numbers_below(text);
    const auto number = [&](const char* key) -> std::optional<double> {
      const auto found = numbers.find(key);
      return found == numbers.end() ? std::nullopt : found->second;
    };
    config.rank = number("dim");
    config.alpha = number("alpha");
    return config;
  }
  return std::nullopt;
}

}  // namespace unshard
