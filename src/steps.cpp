#include "steps.h"

#include <algorithm>

#include "catalog_cache.h"
#include "input.h"
#include "unshard/agree.h"

namespace unshard {

WorkLimits limits_of(const Session& session, const InputOptions& options) {
  constexpr std::uint64_t low_memory_bytes = std::uint64_t{64} << 20;
  WorkLimits limits;
  limits.buffer_bytes = options.low_cpu_mem_usage ? std::min(options.buffer_bytes, low_memory_bytes) : options.buffer_bytes;
  limits.threads = options.threads;
  limits.signal = session.signal;
  return limits;
}

Catalog read_proven_catalog(const Session& session, const std::string& what, FileCache& files, const Source& source,
                            const CachePlace& cache) {
  require_no_errors(what, source.findings);
  Catalog catalog = cache.tree == nullptr ? read_catalog(session.comm, files, source)
                                          : read_cached_catalog(session, files, *cache.tree, source, cache.dir);
  require_no_errors(what, catalog.findings);
  prove_coverage(session.comm, files, source, catalog, {});
  require_no_errors(what, catalog.findings);
  return catalog;
}

void take_names(MapOptions& options, const Source& source) {
  options.names_are_published = source.names_are_published;
  options.sections = source.sections;
  options.shape_hint = source.shape_hint;
  options.is_published_model = source.format == "hf";
}

void take_names_and_facts(MapOptions& options, const Source& source, const Catalog& catalog) {
  take_names(options, source);
  options.facts = catalog.facts;
}

TieAnswer settle_tie(const Session& session, FileCache& files, const Catalog& catalog, const std::optional<TieQuestion>& question) {
  if (!question) return TieAnswer::not_asked;
  const bool same = same_bits(session.comm, files, catalog, question->embedding, question->head, question->shape, question->dtype);
  return same ? TieAnswer::equal : TieAnswer::different;
}

Mapping make_mapping(const Session& session, FileCache& files, const Catalog& catalog, const ModelConfig& config,
                     const MapOptions& options) {
  const auto question = collectively(session.comm, "map", [&] { return tie_question(catalog.tensors, config, options); });
  const TieAnswer answer = settle_tie(session, files, catalog, question);
  Mapping mapping = collectively(session.comm, "map", [&] { return map_tensors(catalog.tensors, config, options, answer); });
  for (const std::string& warning : mapping.warnings) session.log.warning(warning);
  return mapping;
}

}  // namespace unshard
