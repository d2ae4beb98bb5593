// Internal: the safetensors output (a row of outputs.cpp), and what other writers of small safetensors files need of it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "unshard/output_format.h"

namespace unshard {

[[nodiscard]] const OutputFormat& safetensors_output();

/// Local, pure. `members` (numbers in targets.targets) in the order in which the reference writer puts them into one file.
void sort_as_saved(const Targets& targets, std::vector<std::uint32_t>& members);

/// Local, pure. The first bytes of a file that holds `members` in this order: length, JSON, padding. Together they have less than 2^63
/// bytes.
[[nodiscard]] std::string safetensors_header(const Targets& targets, const std::vector<std::uint32_t>& members);

/// Local, pure. Bytes of the target's elements. Throws Error(bad_input) on overflow.
[[nodiscard]] std::uint64_t target_bytes(const Target& target);

}  // namespace unshard
