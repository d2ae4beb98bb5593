// extract-lora --finetuned: the difference of two models as an adapter.
#pragma once

#include <string>

#include "unshard/merge.h"

namespace unshard {

/// Collective. Linear layers that differ become pairs of rank at most options.rank, by singular value decomposition; other tensors that
/// differ are kept whole and named. Returns the JSON result. Throws Error(bad_input) when the models have nothing in common or are equal.
[[nodiscard]] std::string extract_by_svd(const Session& session, const ExtractLoraOptions& options);

}  // namespace unshard
