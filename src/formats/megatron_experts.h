// What names of Megatron's tensors say of routed experts (megatron/core/transformer/moe/experts.py: SequentialMLP, TEGroupedMLP,
// GroupedMLP).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace unshard {

/// What a name says of routed experts.
struct ExpertName {
  std::string name;                                                                        ///< of the tensor of all experts
  std::uint64_t first = 0;                                                                 ///< the expert's local number
  bool all = false;                                                                        ///< the tensor holds all experts of its rank
  enum class Layout : std::uint8_t { matrices, columns, rows } layout = Layout::matrices;  ///< of such a tensor; the latter two: GroupedMLP
};

/// Local, pure. None for a name that is no routed expert's.
[[nodiscard]] std::optional<ExpertName> expert_name(const std::string& name);

/// Local, pure. Takes a number off the front of `text`; none when there is none, or none that counts layers or experts.
[[nodiscard]] std::optional<std::uint64_t> take_number(std::string_view& text);

}  // namespace unshard
