#include "model_input.h"

#include <algorithm>

#include "steps.h"
#include "unshard/agree.h"

namespace unshard {
namespace {

/// Collective. The proven catalog of a Hugging Face folder that helps (--like, --fill-missing-from).
struct HelperFolder {
  Tree tree;
  Source source;
  Catalog catalog;
};
HelperFolder read_helper_folder(const Session& session, const std::string& option, const std::string& folder, const WorkLimits& limits) {
  HelperFolder helper;
  helper.tree = list_tree(session.comm, session.files, {folder});
  helper.source = collectively(session.comm, option, [&] { return discover(helper.tree, "hf"); });
  FileCache files(session.files, helper.source, limits);
  helper.catalog = read_proven_catalog(session, option, files, helper.source);
  return helper;
}

}  // namespace

MapOptions complete_map_options(const Session& session, const Source& source, const MapOptions& options,
                                const std::string& custom_mapping_path, const std::string& like_dir, const WorkLimits& limits) {
  MapOptions map = options;
  take_names(map, source);
  map.keeps_order = std::ranges::none_of(source.files, [](const ShardFile& file) { return file.label.ends_with(".safetensors"); });
  if (!custom_mapping_path.empty()) {
    map.custom_mapping = read_shared_text(session, custom_mapping_path, "--custom-mapping").text;
    map.custom_mapping_path = custom_mapping_path;
  }
  if (!like_dir.empty()) map.like = LikeFolder{like_dir, read_helper_folder(session, "--like", like_dir, limits).catalog.tensors};
  return map;
}

Catalog read_model_input(const Session& session, const std::string& what, FileCache& files, Input& input, const ModelConfig& config,
                         MapOptions& map, const std::string& fill_missing_from, const std::string& cache_dir, const WorkLimits& limits) {
  input.source.names = collectively(session.comm, "map", [&] { return name_help(config, map); });
  Catalog catalog = read_proven_catalog(session, what, files, input.source, {&input.tree, cache_dir});
  if (!fill_missing_from.empty()) {
    HelperFolder fill = read_helper_folder(session, "--fill-missing-from", fill_missing_from, limits);
    append_catalog(session.comm, input.source, catalog, fill.source, fill.catalog);
    input.tree.entries.merge(fill.tree.entries);
  }
  map.facts = catalog.facts;
  return catalog;
}

}  // namespace unshard
