// What merge, and test straight from the shards, read before they map names: the checkpoint, completed from another folder, and the files
// that options name.
#pragma once

#include <string>

#include "input.h"
#include "unshard/file_cache.h"

namespace unshard {

/// Collective. `options` with the texts of --custom-mapping and the tensors of --like ("" where not given), and what the format of `source`
/// says about names and order.
[[nodiscard]] MapOptions complete_map_options(const Session& session, const Source& source, const MapOptions& options,
                                              const std::string& custom_mapping_path, const std::string& like_dir,
                                              const WorkLimits& limits);

/// Collective. `what` names the input in messages. The proven catalog of `input` (whose files are `files`), and behind it the tensors of
/// --fill-missing-from. What the checkpoint states about itself goes into `map`, which is complete_map_options()'s.
[[nodiscard]] Catalog read_model_input(const Session& session, const std::string& what, FileCache& files, Input& input,
                                       const ModelConfig& config, MapOptions& map, const std::string& fill_missing_from,
                                       const std::string& cache_dir, const WorkLimits& limits);

}  // namespace unshard
