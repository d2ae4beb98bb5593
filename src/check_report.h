// What `check` found, as lines for a person and as JSON.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "catalog_summary.h"
#include "megatron_contents.h"
#include "unshard/catalog.h"
#include "unshard/source.h"

namespace unshard {

struct CheckReport {
  const Source& source;
  const Catalog& catalog;
  std::vector<Finding> findings;         ///< all of them, errors first
  std::vector<StoredAs> stored;          ///< by tensor
  std::vector<NonFinite> non_finite;     ///< by tensor; empty without --deep
  std::vector<double> lora_alphas = {};  ///< of adapters in the checkpoint, where it says them
  MegatronContents megatron = {};        ///< empty where names are no Megatron's
};

/// Local, pure. Whether there is no error among the findings.
[[nodiscard]] bool is_complete(const CheckReport& report);
[[nodiscard]] std::vector<std::string> to_lines(const CheckReport& report);
[[nodiscard]] std::string to_json(const CheckReport& report);

/// Local, pure. "parallel sizes: pipeline 2, tensor 2"; "" when the checkpoint states none.
[[nodiscard]] std::string parallel_sizes(const Facts& facts);

/// Local, pure. `FSDP`
[[nodiscard]] std::string format_title(const Source& source);

/// Local, pure. Bytes of all tensors together.
[[nodiscard]] std::uint64_t total_bytes(const Catalog& catalog);

}  // namespace unshard
