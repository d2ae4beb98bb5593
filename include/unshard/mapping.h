// From the tensors of a checkpoint to the tensors of a published model: names, expert layout, ties, dtypes, shapes against config.json.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "unshard/catalog.h"
#include "unshard/lora.h"
#include "unshard/targets.h"

namespace unshard {

/// config.json, read but not interpreted further. Keys are looked up at the top level, then in `text_config`, `language_config`,
/// `llm_config`, `thinker_config` (and a `text_config` in these); a key with dots is a path from the top. A key that is null counts as
/// absent.
class ModelConfig {
 public:
  /// Local. Throws Error(bad_input) naming `path` for what is no JSON object, nested deeper than 100 levels, or has impossible numbers.
  static ModelConfig parse(std::string_view text, const std::string& path);
  [[nodiscard]] const std::string& path() const;
  [[nodiscard]] std::string model_type() const;  ///< "" when absent
  [[nodiscard]] std::vector<std::string> architectures() const;
  [[nodiscard]] bool has(std::string_view key) const;
  /// Throws Error(bad_input) naming path and key when something else than a whole number stands there.
  [[nodiscard]] std::optional<std::uint64_t> number(std::string_view key) const;
  [[nodiscard]] std::vector<std::uint64_t> numbers(std::string_view key) const;  ///< the whole numbers of a list; empty when there is none
  [[nodiscard]] std::optional<std::string> text(std::string_view key) const;
  /// Of a list of texts, or of a text as a list of its letters: one item, and how many there are; none where there is no such thing.
  [[nodiscard]] std::optional<std::string> item(std::string_view key, std::uint64_t index) const;
  [[nodiscard]] std::optional<std::uint64_t> length(std::string_view key) const;
  [[nodiscard]] std::optional<bool> flag(std::string_view key) const;
  [[nodiscard]] std::optional<DType> dtype() const;  ///< `dtype`, else `torch_dtype`
  void override_number(const std::string& key, std::uint64_t value);  ///< also for the key in those sub-configurations
  [[nodiscard]] bool is_overridden() const;                           ///< some number is

  /// What changes in the written config.json; everything else, unknown keys and number formatting included, stays as it is.
  struct Edits {
    std::optional<DType> dtype;  ///< the keys present, in sub-configs too; `torch_dtype` when there is none
    std::optional<bool> tie_word_embeddings;
    std::optional<std::uint64_t> vocab_size;
    bool remove_quantization = false;
    std::vector<std::pair<std::string, std::string>> architectures;  ///< names of classes, and what they become
  };
  [[nodiscard]] std::string edited(const Edits& edits) const;

  ModelConfig();
  ModelConfig(const ModelConfig&);
  ModelConfig(ModelConfig&&) noexcept;
  ModelConfig& operator=(ModelConfig&&) noexcept;
  ~ModelConfig();

 private:
  struct Data;
  std::unique_ptr<Data> data_;
};

/// How --dtype is spelled: by config.json, as stored, or a type.
struct DTypeChoice {
  enum class Kind : std::uint8_t { by_config, keep, fixed } kind = Kind::by_config;
  DType fixed = DType::bf16;
};

/// Names, dtypes and shapes of a Hugging Face folder that the output is to follow (--like).
struct LikeFolder {
  std::string path;
  std::vector<TensorRow> tensors;
};

/// What becomes of LoRA tensors.
struct LoraChoice {
  enum class What : std::uint8_t { extract, fold, drop } what = What::extract;
  std::vector<AdapterUse> adapters;  ///< those among the tensors, with their settings (not needed for drop)
};

struct MapOptions {
  std::string model_type;  ///< --model-type, else ""
  DTypeChoice dtype;
  bool tie_word_embedding = false;
  bool is_value_model = false;
  LoraChoice lora;
  std::string custom_mapping;  ///< the JSON text; "" without one
  std::string custom_mapping_path;
  std::vector<std::string> allow_missing, drop;  ///< globs
  std::optional<LikeFolder> like;
  std::vector<std::string> sections;  ///< what stands in front of stored names ("model."): Source::sections; empty: nothing
  std::string shape_hint;             ///< Source::shape_hint
  bool keeps_order = true;            ///< the checkpoint lists its tensors in the order of the model; safetensors files sort them by name
  bool names_are_published = true;    ///< unknown names pass through (FSDP, DCP, HF); false where every name needs a rule (Megatron)
  bool is_published_model = false;    ///< the input is a Hugging Face folder: what its config.json does not count passes through too
  Facts facts;                        ///< numbers that the checkpoint states about itself, by the names that rules have for them
};

/// Two stored tensors that config.json or a flag says are tied; whether they are equal decides what is written.
struct TieQuestion {
  TensorId embedding = 0;
  TensorId head = 0;
  Shape shape;               ///< of what is compared, from offset 0: without the padding of a vocabulary
  DType dtype = DType::f32;  ///< compared after the cast to this
};
enum class TieAnswer : std::uint8_t { not_asked, equal, different };

/// A target that DoRA rescales: by its magnitudes and by norms that are yet to be computed.
struct Decomposition {
  std::size_t target = 0;  ///< number in Targets::targets
  TensorId magnitude = 0;
  bool of_columns = false;
};

/// What mapping decided.
struct Mapping {
  Targets targets;
  ModelConfig::Edits edits;
  std::vector<std::string> notes;     ///< lines for the user: casts, names left out, filled tensors
  std::vector<std::string> warnings;  ///< lines that must not be missed
  std::vector<std::string> filled;    ///< targets that come from --fill-missing-from
  /// By target: those of one number (not 0) are views of one tensor when transformers saves them, so that it keeps them in one file. Empty:
  /// none.
  std::vector<std::uint32_t> block_by_target;
  std::vector<Decomposition> decompositions;
};

/// Local, pure. What the user and the model's family say of Megatron's names, for the format that must place such tensors. Throws as
/// map_tensors.
[[nodiscard]] NameHelp name_help(const ModelConfig& config, const MapOptions& options);

/// Local, pure. The tie that must be settled before mapping, if any.
[[nodiscard]] std::optional<TieQuestion> tie_question(const std::vector<TensorRow>& table, const ModelConfig& config,
                                                      const MapOptions& options);

/// Local, pure, deterministic. Throws Error(bad_input) with names: missing tensors, colliding names, shapes that contradict config.json, a
/// flag that contradicts the checkpoint, adapters whose modules are not there; Error(unsupported): adapters that can't be folded, unknown
/// element types.
[[nodiscard]] Mapping map_tensors(const std::vector<TensorRow>& table, const ModelConfig& config, const MapOptions& options, TieAnswer tie);

/// Local, pure. `name` without what wrappers put into it: `_orig_mod`, `_fsdp_wrapped_module`, `_checkpoint_wrapped_module`, `_fpw_module`
/// at any depth; `module`,
/// `_forward_module` in front or beside another wrapper's element.
[[nodiscard]] std::string without_wrappers(std::string_view name);

/// Local, pure. Whether `name` is a LoRA tensor of PEFT or Megatron ("lora_A", ".adapter.").
[[nodiscard]] bool is_lora(std::string_view name);

/// Local. `pattern` with `*`, `?` and `[...]` against a whole name.
[[nodiscard]] bool glob_matches(std::string_view pattern, std::string_view name);

/// Local. The model types with rules, sorted (`inspect --families`, `--version`).
[[nodiscard]] std::vector<std::string> family_names();
/// Local. Those of them that have rules for Megatron's names too.
[[nodiscard]] std::vector<std::string> megatron_family_names();

}  // namespace unshard
