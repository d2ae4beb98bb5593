// Megatron-core's distributed checkpoints (megatron/core/dist_checkpointing, strategies/torch.py): a DCP checkpoint with names of its own.
//
//   .metadata, __<R>_<N>.distcp   as in dcp.cpp; planner_data is None
//   metadata.json                 {"sharded_backend": "torch_dist", …}; written last
//   common.pt                     what is not sharded (args, iteration); since core 0.19 the object common_state/shard_0_1 instead
//
// A key is a parameter of the whole model, so pipeline stages and model chunks are resolved already and every box is global: layers of one
// kind are stacked ([layers, …], no number in the key) or numbered globally, experts are stacked, a gated linear_fc1 is [gate; up] whatever
// the tensor-parallel size was, and a vocabulary is padded at its end. Optimizer state is told by its key: `optimizer.…`,
// `chained_<i>.optimizer.…`. Objects (`…_extra_state/shard_0_24`, rng_state) are no weights.
#include "formats/torch_dist.h"

#include <algorithm>
#include <array>

#include "formats/config_places.h"
#include "formats/dcp.h"
#include "formats/megatron_args.h"
#include "formats/shard_files.h"
#include "formats/torch_rebuild.h"
#include "unshard/error.h"
#include "wire.h"

namespace unshard {
namespace {

constexpr std::string_view common_name = "common.pt";

class TorchDistFormat final : public CheckpointFormat {
 public:
  [[nodiscard]] std::string_view name() const override { return "torch_dist"; }
  [[nodiscard]] std::string_view backend() const override { return "megatron"; }
  [[nodiscard]] std::string_view description() const override {
    return "Megatron distributed checkpoint (torch_dist: metadata.json, .metadata and *.distcp)";
  }

  [[nodiscard]] bool recognises(const Tree& tree, const std::string& folder) const override {
    return holds_dcp_files(tree, folder) && is_of_torch_dist(tree, folder);
  }
  /// A part of one, or one of the plain DCP checkpoints that Megatron writes too.
  [[nodiscard]] bool fits(const Tree& tree, const std::string& folder) const override { return holds_dcp_files(tree, folder); }

  [[nodiscard]] Source describe(const Tree& tree, const std::vector<std::string>& folders) const override {
    Source source = describe_dcp_folders(tree, folders);
    source.names_are_published = false;
    source.config_folders = config_places_beside(folders);
    auto common = shard_named(tree, folders, std::string(common_name));
    if (common && !shard_named(tree, folders, "metadata.json")) {
      source.findings.push_back({Severity::note, "metadata.json",
                                 "is missing, which Megatron writes last: the save may not have finished; what .metadata names is read",
                                 ErrorCode::bad_input});
    }
    if (common && visible_problem(tree.find(common->path)->status).empty()) source.index_files.push_back(std::move(*common));
    return source;
  }

  [[nodiscard]] Bytes read_index(const Source& source, FileId file, File& open_file) const override {
    const std::string label = printable(source.index_files[file].label, 4096);
    if (base_name(label) != common_name) return dcp_format().read_index(source, file, open_file);
    const PickledFile pickled = read_pickled_file(open_file, label);
    WireWriter out;
    for (const auto& [name, value] : facts_in(pickled.tree->root(), label)) {
      out.text(name);
      out.number(value);
    }
    return out.take();
  }

  void apply_index(const Tree& tree, std::span<const Bytes> packed, Source& source) const override {
    std::vector<Bytes> metadata;
    for (std::size_t i = 0; i < packed.size(); ++i) {
      if (base_name(source.index_files[i].label) != common_name) {
        metadata.push_back(packed[i]);
        continue;
      }
      for (WireReader in(packed[i]); !in.at_end();) {
        const std::string name = in.text();
        source.facts[name] = in.number();
      }
    }
    if (metadata.empty()) return;  // a finding already
    dcp_format().apply_index(tree, metadata, source);
    source.names_are_published = false;
  }

  [[nodiscard]] ShardContents read_headers(const Source& source, FileId file, File& open_file) const override {
    ShardContents contents = read_dcp_items(source, file, open_file);
    if (file == 0) contents.facts = source.facts;
    const std::string& label = source.files[file].label;
    if (source.state.file.empty() || base_name(label) != base_name(source.state.file)) return contents;
    const std::string where = printable(label, 4096) + ": common_state";
    const PickledFile pickled = read_pickled_item(open_file, source.state.position, source.state.size_bytes, where);
    const auto items = pickled.tree->root().elements();  // [dict]
    if (items.size() == 1) contents.facts.merge(facts_in(*items.front(), where));
    return contents;
  }

 private:
  /// What the training arguments say; runs of Bridge and of verl save none. Boxes are global, so sizes are for the reader only.
  static Facts facts_in(const pickle::Node& root, const std::string& label) {
    const auto args = read_megatron_args(root, label);
    if (!args) return {};
    if (!args->unsupported.empty()) {
      throw Error(ErrorCode::unsupported,
                  label + ": args." + args->unsupported + " is set, and this version does not know how that lays out the tensors");
    }
    Facts facts{{"tensor_parallel", args->tensor}, {"pipeline_parallel", args->pipeline}};
    if (args->experts.value_or(0) > 0) {
      facts["expert_parallel"] = args->expert;
      facts["expert_tensor_parallel"] = args->expert_tensor.value_or(args->tensor);
    }
    add_model_facts(*args, facts);
    return facts;
  }
};

}  // namespace

bool has_megatron_names(const std::vector<IndexedTensor>& tensors) {
  constexpr std::array signs{".self_attention.linear_qkv.", ".self_attention.linear_proj.", ".mlp.linear_fc1.", ".mlp.linear_fc2.",
                             ".mlp.experts.experts.",       ".self_attention.linear_q_"};
  return std::any_of(tensors.begin(), tensors.end(), [&](const IndexedTensor& tensor) {
    return std::any_of(signs.begin(), signs.end(), [&](const char* sign) { return tensor.name.find(sign) != std::string::npos; });
  });
}

const CheckpointFormat& torch_dist_format() {
  static const TorchDistFormat format;
  return format;
}

}  // namespace unshard
