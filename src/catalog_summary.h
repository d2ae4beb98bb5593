// What `check` and `inspect` say of a catalog: how each tensor is stored.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "unshard/catalog.h"

namespace unshard {

/// How one tensor lies in the files, copies apart.
struct StoredAs {
  std::uint32_t chunks = 0;
  std::uint32_t cut_dims = 0;  ///< bit d: chunks don't span dimension d
  friend auto operator<=>(const StoredAs&, const StoredAs&) = default;
};

/// Collective. By tensor, the same on every rank.
[[nodiscard]] std::vector<StoredAs> stored_as(Comm& comm, const Catalog& catalog);

/// Local, pure. `Shard(0) in 4 chunks`, `whole`, `no elements`.
[[nodiscard]] std::string to_string(const StoredAs& stored);

/// Local, pure. What LoRA tensors say of their adapter; alpha is in no tensor.
struct LoraSummary {
  std::uint64_t tensors = 0;
  std::vector<std::uint64_t> ranks;  ///< those that the shapes show, sorted
  std::vector<std::string> targets;  ///< names of the modules, sorted: "q_proj"
};
[[nodiscard]] LoraSummary lora_summary(const std::vector<TensorRow>& table);

}  // namespace unshard
