// The steps of map_tensors, each in a file of its own, in this order:
//
//     stored_names.cpp   clean names; what is left out (buffers, adapters, --drop)
//     save_order.cpp     the order in which transformers would save them
//     published.cpp      family rules: targets under published names
//     tie.cpp            the output layer of tied models
//     heads.cpp          the kind of model: its output layer, its class in config.json
//     completeness.cpp   shapes and names against config.json
//     like.cpp           names and layouts of the --like folder
//     lora_addends.cpp   what adapters add to the targets
//     dtype_choice.cpp   element types, and what config.json says of them
//
// All are Local and pure.
#pragma once

#include <map>
#include <string>
#include <unordered_map>
#include <vector>

#include "families/families.h"
#include "lora_deltas.h"
#include "unshard/mapping.h"

namespace unshard {

/// What adapters mean for the tensors of the table (lora_plan.cpp).
struct AdapterPlan {
  std::unordered_map<TensorId, std::string> left_out;       ///< tensors that are not published as they are, and why
  std::unordered_map<TensorId, std::string> names;          ///< clean names of tensors that stand for others
  std::unordered_map<TensorId, std::vector<Delta>> deltas;  ///< by the tensor that they are added to
  /// Rows of a tensor that come from another one (trainable_token_indices): row by row, ascending.
  struct Row {
    std::uint64_t row = 0;
    TensorId tensor = 0;
    std::uint64_t from = 0;
  };
  std::unordered_map<TensorId, std::vector<Row>> rows;
  /// DoRA: the magnitudes of a tensor's rows, or of its columns.
  struct Magnitude {
    TensorId tensor = 0;
    bool of_columns = false;
  };
  std::unordered_map<TensorId, Magnitude> magnitudes;
  /// What is added to a published tensor, by its name: the adapters of Megatron's layers.
  struct Addition {
    Shape shape;  ///< of the tensor
    std::vector<Addend> addends;
    TensorId from = 0;  ///< a matrix of it, for messages
  };
  std::map<std::string, Addition> additions;
  /// Of a tied model whose head and embedding become different: the head's name, where it is not stored; what is added to it alone; and
  /// whether what is added to the embedding is not added to the head.
  bool unties = false;
  std::vector<Delta> head_deltas;
  std::vector<std::string> notes;
};

/// What stays the same during one mapping.
struct MapContext {
  const std::vector<TensorRow>& table;
  const ModelConfig& config;
  const MapOptions& options;
  Family family;
  std::vector<std::pair<std::string, std::string>> renames;  ///< the plain form of --custom-mapping
  std::unordered_map<std::string, const TensorRow*> like;    ///< the tensors of --like, by name
  AdapterPlan adapters;

  [[nodiscard]] std::unique_ptr<Names> names(Captures captures = {}) const { return names_in(config, family, std::move(captures)); }
};
[[nodiscard]] MapContext make_context(const std::vector<TensorRow>& table, const ModelConfig& config, const MapOptions& options);

/// Megatron's training arguments against config.json: numbers of heads fit shapes in more than one way. Throws Error(bad_input) with both
/// sides' numbers, Error(unsupported) for rotary embeddings that the published model does not have.
void check_megatron_args(const MapContext& context);

/// Finds what each adapter of options.lora changes. Throws Error(bad_input) with the names of modules that are not there.
[[nodiscard]] AdapterPlan plan_adapters(const MapContext& context);

/// A stored tensor that is to be published, under its clean name.
struct NamedTensor {
  TensorId id = 0;
  std::string name;
};

struct NamedTensors {
  std::vector<NamedTensor>
      tensors;  ///< those of the checkpoint, in the order in which transformers would save them, then those to fill with
  std::vector<Unused> unused;
  std::vector<std::string> notes;
};
/// Throws Error for LoRA tensors that can't be dealt with.
[[nodiscard]] NamedTensors clean_names(const MapContext& context);

/// Targets by published name. dtype is the stored one until choose_dtypes.
struct Published {
  std::vector<Target> targets;
  std::vector<bool> filled;  ///< by target: from --fill-missing-from
  std::unordered_map<std::string, std::size_t> by_name;

  [[nodiscard]] const Target* find(const std::string& name) const;
  void add(Target target, bool is_filled);
  void remove_if(const std::vector<bool>& unwanted);  ///< by target
};
/// Throws Error(bad_input) for two tensors of one name, and for a stored name without a rule where names must be translated.
[[nodiscard]] Published publish_names(const MapContext& context, const NamedTensors& named);

/// Whether config.json (or the family, or the flag) ties the output layer, and the pair, where both or one are there.
struct Tie {
  bool by_config = false;
  bool tied = false;
  std::string head_name;  ///< of the family
  const Target* head = nullptr;
  const Target* embedding = nullptr;
};
[[nodiscard]] Tie find_tie(const MapContext& context, const Published& published);
/// Whether config.json, the family or the flag ties them, whatever is stored.
[[nodiscard]] bool is_tied(const MapContext& context);
/// Whether the two can only be compared by their data.
[[nodiscard]] bool needs_comparison(const MapContext& context, const Tie& tie);
/// Drops a head that is a copy; sets the flag for one that is not.
void settle_tie(const MapContext& context, TieAnswer answer, Published& published, Mapping& mapping);

/// Whether the output layer of a language model is asked for.
[[nodiscard]] bool has_language_head(const MapContext& context, const Published& published);
/// Puts right what config.json says of the model's class: no `FSDP` in front (FSDP2 renames classes), and the class of a score head where
/// there is one.
void settle_architectures(const MapContext& context, const Published& published, Mapping& mapping);
/// Whether the weights are quantised: matrices of codes, and scales or a config.json that says so.
[[nodiscard]] bool is_quantised(const MapContext& context, const Published& published);

/// One tensor that config.json implies.
struct Expected {
  std::string name;
  const TensorSpec* spec = nullptr;
  std::optional<Shape> shape;
};
[[nodiscard]] std::vector<Expected> expected_tensors(const MapContext& context, const Published& published);
/// A tensor whose shape contradicts config.json.
struct ShapeConflict {
  std::string name;
  std::string text;  ///< both shapes, and the numbers behind
};
/// At most `most` of them.
[[nodiscard]] std::vector<ShapeConflict> shape_conflicts(const MapContext& context, const std::vector<Expected>& expected,
                                                         const Published& published, std::size_t most);
struct NameDifferences {
  std::vector<std::string> missing, unexpected;
};
[[nodiscard]] NameDifferences compare_names(const MapContext& context, const std::vector<Expected>& expected, const Published& published);
/// Removes tensors of --fill-missing-from that config.json does not ask for.
void leave_out_needless_filling(const MapContext& context, const std::vector<Expected>& expected, Published& published, Mapping& mapping);
/// Notes patterns of --allow-missing that match none of `missing`.
void note_idle_patterns(const MapContext& context, const std::vector<std::string>& missing, Mapping& mapping);
/// Throws Error(bad_input) naming the first tensor whose shape is another, and both shapes.
void check_shapes(const MapContext& context, const std::vector<Expected>& expected, const Published& published);
/// Throws Error(bad_input) with the names of missing tensors. Notes those that are not expected.
void check_names(const MapContext& context, const std::vector<Expected>& expected, const Published& published, Mapping& mapping);

/// A published tensor as a part of one of another layout (--like).
struct LikePart {
  std::string published;  ///< its name
  Shape shape;
  Term term;  ///< from it to the other
};
using LikeParts = std::unordered_map<std::string, std::vector<LikePart>>;  ///< by the other's name

/// Turns the targets into those of the --like folder; returns what those of another layout are made of. Throws Error(bad_input) with the
/// names that can't be matched.
[[nodiscard]] LikeParts follow_like(const MapContext& context, Published& published);

/// Gives the targets their computations: what adapters add to them. Every delta must reach its targets whole.
void add_addends(const MapContext& context, const LikeParts& parts, Published& published, Mapping& mapping);

/// The element type in which `target` is written.
[[nodiscard]] DType dtype_for(const MapContext& context, const std::string& name, DType stored);
void choose_dtypes(const MapContext& context, Published& published, Mapping& mapping);

}  // namespace unshard
