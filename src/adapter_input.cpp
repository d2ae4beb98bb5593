// A PEFT folder: adapter_config.json, and adapter_model.safetensors (or, older, adapter_model.bin). peft src/peft/peft_model.py,
// save_pretrained: never sharded; every adapter but `default` has a folder of its own below.
#include "adapter_input.h"

#include "append_rows.h"
#include "check_files.h"
#include "formats/shard_files.h"
#include "input.h"
#include "steps.h"
#include "unshard/agree.h"

namespace unshard {
namespace {

constexpr const char* config_name = "adapter_config.json";

[[noreturn]] void fail(const std::string& folder, const std::string& what) {
  throw Error(ErrorCode::bad_input, printable(folder, 4096) + ": " + what);
}

const TreeEntry* file_in(const Tree& tree, const std::string& folder, const char* name) {
  const TreeEntry* entry = tree.find(join_path(folder, name));
  return entry != nullptr && entry->status.kind == FileKind::file ? entry : nullptr;
}

Source describe_adapter(const Tree& tree) {
  const std::string& folder = tree.roots.front();
  const char* weights = file_in(tree, folder, adapter_weights_name) == nullptr && file_in(tree, folder, old_adapter_weights_name) != nullptr
                            ? old_adapter_weights_name
                            : adapter_weights_name;
  if (file_in(tree, folder, weights) == nullptr) {
    for (const std::string& name : tree.children(folder)) {
      if (file_in(tree, join_path(folder, name), adapter_weights_name) != nullptr)
        fail(folder, "holds no adapter itself, but " + printable(name) + " in it does; give that folder");
    }
    fail(folder, "holds no adapter: there is no " + std::string(adapter_weights_name) + "; give the folder that PEFT has saved");
  }
  if (file_in(tree, folder, config_name) == nullptr)
    fail(folder, "holds no " + std::string(config_name) + ", without which the adapter's scale is unknown");
  const std::string path = join_path(folder, weights);
  Source source;
  source.format = "hf";
  source.folder = folder;
  source.config_folders = {folder};
  source.files.push_back(shard_at(tree, {path}));
  check_files(tree, source.files);
  return source;
}

/// Without its magnitudes a DoRA pair would be folded as another method's.
void require_magnitudes(const std::string& folder, const Adapter& adapter) {
  for (const LoraPair& pair : adapter.pairs)
    if (!pair.magnitude)
      fail(folder, "says use_dora, but has no lora_magnitude_vector for " + printable(pair.module) + "; is the adapter complete?");
}

}  // namespace

AdapterUse read_adapter(const Session& session, const AdapterFolder& folder, const WorkLimits& limits, Tree& tree, Source& source,
                        Catalog& catalog) {
  Tree here = list_tree(session.comm, session.files, {folder.path});
  const Source adapter_source = collectively(session.comm, "adapter", [&] { return describe_adapter(here); });
  const std::string config_path = join_path(adapter_source.folder, config_name);
  const SharedText text = read_shared_text(session, config_path, "adapter");
  AdapterUse use;
  use.label = folder.path;
  use.weight = folder.weight;
  use.config = collectively(session.comm, "adapter", [&] { return parse_adapter_config(text.text, config_path); });
  FileCache files(session.files, adapter_source, limits);
  const Catalog tensors = read_proven_catalog(session, "adapter", files, adapter_source);
  const auto first = static_cast<TensorId>(catalog.tensors.size());
  append_rows(session.comm, source, catalog, adapter_source, tensors, 0);
  tree.entries.merge(here.entries);
  use.adapter = collectively(session.comm, "adapter", [&] {
    const auto end = static_cast<TensorId>(catalog.tensors.size());
    std::vector<Adapter> adapters = find_adapters(catalog.tensors, first, end, true);
    if (adapters.empty()) fail(folder.path, "its adapter file holds no tensors");
    if (use.config.weights_decomposed) require_magnitudes(folder.path, adapters.front());
    return std::move(adapters.front());
  });
  return use;
}

}  // namespace unshard
