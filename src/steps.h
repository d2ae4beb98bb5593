// Steps that `merge` and `test` have in common: from the files of a checkpoint to what every output tensor is made of.
#pragma once

#include <optional>
#include <string>

#include "unshard/catalog.h"
#include "unshard/file_cache.h"
#include "unshard/mapping.h"
#include "unshard/merge.h"

namespace unshard {

/// Local, pure. What a command may use, from its options and from who called it.
[[nodiscard]] WorkLimits limits_of(const Session& session, const InputOptions& options);

/// Where a catalog may be kept: `tree` has the source's files.
struct CachePlace {
  const Tree* tree = nullptr;
  std::string dir;
};

/// Collective. The headers of all files, and the proof that they make whole tensors. Throws the first error among the findings; `what`
/// names the step or the side in it.
[[nodiscard]] Catalog read_proven_catalog(const Session& session, const std::string& what, FileCache& files, const Source& source,
                                          const CachePlace& cache = {});

/// Local, pure. What mapping must know of the checkpoint before its headers are read: whose names its tensors have.
void take_names(MapOptions& options, const Source& source);

/// Local, pure. And what it states about itself.
void take_names_and_facts(MapOptions& options, const Source& source, const Catalog& catalog);

/// Collective. Whether two stored tensors that config.json ties hold the same bits.
[[nodiscard]] TieAnswer settle_tie(const Session& session, FileCache& files, const Catalog& catalog,
                                   const std::optional<TieQuestion>& question);

/// Collective. What every output tensor is made of; ties are settled by the data. Says the warnings.
[[nodiscard]] Mapping make_mapping(const Session& session, FileCache& files, const Catalog& catalog, const ModelConfig& config,
                                   const MapOptions& options);

}  // namespace unshard
