// The folders of a Megatron checkpoint: mp_rank_TT[_PPP][_EEE], one for each model-parallel rank.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "unshard/source.h"

namespace unshard {

/// The numbers in a folder's name: the tensor-parallel rank, then the pipeline and the expert rank where there are several.
struct MegatronFolder {
  std::vector<std::uint64_t> numbers;  ///< one to three
};

/// Local, pure. None for another name.
[[nodiscard]] std::optional<MegatronFolder> parse_megatron_folder(std::string_view name);

/// Local, pure. Whether `folder` holds such folders with a file of weights in them.
[[nodiscard]] bool holds_megatron_files(const Tree& tree, const std::string& folder);

/// Local, pure. The files of weights of all ranks; optimizer files beside them are left alone.
[[nodiscard]] Source describe_megatron_files(const Tree& tree, const std::vector<std::string>& folders);

}  // namespace unshard
