#include "formats/megatron_experts.h"

#include <charconv>

namespace unshard {

std::optional<std::uint64_t> take_number(std::string_view& text) {
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || value > (1U << 24U)) return std::nullopt;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return value;
}

std::optional<ExpertName> expert_name(const std::string& name) {
  constexpr std::string_view mark = ".mlp.experts.";
  const std::size_t at = name.find(mark);
  if (at == std::string::npos) return std::nullopt;
  const std::string before = name.substr(0, at + mark.size()) + "experts.";
  std::string_view rest = std::string_view(name).substr(at + mark.size());
  if (rest == "weight1") return ExpertName{before + "linear_fc1.weight", 0, true, ExpertName::Layout::columns};
  if (rest == "weight2") return ExpertName{before + "linear_fc2.weight", 0, true, ExpertName::Layout::rows};
  constexpr std::string_view sequential = "local_experts.";
  if (rest.starts_with(sequential)) {
    rest.remove_prefix(sequential.size());
    const auto number = take_number(rest);
    if (!number || !rest.starts_with('.')) return std::nullopt;
    return ExpertName{before + std::string(rest.substr(1)), *number, false, {}};
  }
  for (const std::string_view kind : {"linear_fc1.weight", "linear_fc2.weight", "linear_fc1.bias", "linear_fc2.bias"}) {
    if (!rest.starts_with(kind)) continue;
    rest.remove_prefix(kind.size());
    if (rest.empty()) return ExpertName{before + std::string(kind), 0, true, {}};
    const auto number = take_number(rest);
    if (!number || !rest.empty()) return std::nullopt;
    return ExpertName{before + std::string(kind), *number, false, {}};
  }
  return std::nullopt;
}

}  // namespace unshard
