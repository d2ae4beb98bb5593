// Which tensors of two models differ, and what the adapter keeps of each.
#pragma once

#include <string>
#include <vector>

#include "adapter_output.h"
#include "unshard/catalog.h"
#include "unshard/file_cache.h"
#include "unshard/merge.h"

namespace unshard {

/// A linear layer that differs: rows of `difference` are those of the stored tensor.
struct SvdPair {
  std::string module;
  Target difference;        ///< fine-tuned minus base, in fp32
  bool transposed = false;  ///< stored as [in, out]
  std::uint64_t rank = 0;
};

struct Differences {
  std::vector<SvdPair> pairs;                   ///< in the order of the fine-tuned model
  std::vector<TensorId> whole;                  ///< tensors of the fine-tuned model that no pair can hold
  std::vector<std::string> unchanged, missing;  ///< names; `missing` are in the base only
};

/// Collective. `catalog` has the base model's tensors as origin 0, the fine-tuned one's as origin 1; `transposed`: globs of layers that are
/// stored as [in, out].
[[nodiscard]] Differences find_differences(const Session& session, FileCache& files, const Catalog& catalog,
                                           const std::vector<std::string>& transposed, std::uint64_t rank);

/// Local, pure. The adapter's targets: of each pair lora_A and lora_B (in this order, without terms: their values are yet to be computed),
/// then the whole tensors; and its config.
[[nodiscard]] AdapterOutput svd_output(const std::vector<TensorRow>& table, const Differences& found, std::uint64_t rank,
                                       const std::string& base_model, const std::string& task_type, DType dtype);

}  // namespace unshard
