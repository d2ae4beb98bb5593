// The rules for Megatron's names, for every family: from the files of transformers (tests/data/families) to Megatron's tensors, for one and
// for two tensor-parallel ranks, and back; and the names against the tables of Megatron-Bridge and others (tests/data/megatron_names.json).
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "families/families.h"
#include "unshard/error.h"
#include "unshard/mapping.h"

namespace unshard {
namespace {

using Json = nlohmann::ordered_json;
namespace fs = std::filesystem;

constexpr std::uint64_t padding_rows = 14;
constexpr const char* less_1 = " - 1";

fs::path data_folder() {
  return fs::path(UNSHARD_CASES).parent_path() / "data";
}

Json read_json(const fs::path& path) {
  std::ifstream file(path);
  return Json::parse(file);
}

/// The published models of the goldens: classifiers and models saved without their head are no language models that Megatron trains, and of
/// some types its names are not known, or not those of the projector.
std::vector<std::string> language_models() {
  const std::set<std::string> others = {"llama_reward", "qwen2_critic", "gpt2_base",  "llava",    "llava_next", "llava_onevision",
                                        "vipllava",     "paligemma",    "aya_vision", "internvl", "mistral3",   "aria"};
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(data_folder() / "families")) {
    const std::string name = entry.path().stem().string();
    const ModelConfig config = ModelConfig::parse(read_json(entry.path()).at("config").dump(), name);
    if (!others.contains(name) && !family_of(config.model_type(), config).megatron.empty()) names.push_back(name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

/// A tensor whose every element says where it comes from.
struct Labelled {
  Shape shape;
  std::vector<std::string> elements;
};

std::uint64_t index_in(const Shape& shape, const std::vector<std::uint64_t>& at) {
  std::uint64_t index = 0;
  for (std::size_t d = 0; d < shape.size(); ++d) index = index * shape[d] + at[d];
  return index;
}

void fill(const Term& term, const Labelled& source, Labelled& target) {
  std::vector<std::uint64_t> counter(term.axes.size(), 0);
  while (true) {
    std::vector<std::uint64_t> from(term.source_start.begin(), term.source_start.end()),
        to(term.target_start.begin(), term.target_start.end());
    for (std::size_t k = 0; k < counter.size(); ++k) {
      from[term.axes[k].source_dim] += counter[k] * term.axes[k].source_step;
      to[term.axes[k].target_dim] += counter[k] * term.axes[k].target_step;
    }
    target.elements.at(index_in(target.shape, to)) = source.elements.at(index_in(source.shape, from));
    std::size_t k = counter.size();
    while (k > 0 && ++counter[k - 1] == term.axes[k - 1].extent) counter[--k] = 0;
    if (k == 0) return;
  }
}

Labelled labelled(const std::string& name, const Shape& shape) {
  Labelled tensor{shape, {}};
  for (std::uint64_t i = 0; i < volume(shape); ++i) tensor.elements.push_back(name + "#" + std::to_string(i));
  return tensor;
}

class MegatronFamilies : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    const Json golden = read_json(data_folder() / "families" / (GetParam() + ".json"));
    config_ = ModelConfig::parse(golden.at("config").dump(1), "config.json");
    for (const Json& row : golden.at("files")) {
      const std::string name = row.at(0);
      if (name.find("visual.") != std::string::npos || name.find("vision_tower.") != std::string::npos ||
          name.find("multi_modal_projector.") != std::string::npos)
        continue;  // the vision part is another model's
      files_.emplace(name, Shape(row.at(1).get<std::vector<std::uint64_t>>()));
    }
    family_ = family_of(config_.model_type(), config_);
  }

  [[nodiscard]] MapOptions options(std::uint64_t tensor_parallel) const {
    MapOptions options;
    options.names_are_published = false;
    // The prediction layers that DeepSeek's config.json names are not in what transformers saves.
    options.allow_missing = {"model.layers." + std::to_string(config_.number("num_hidden_layers").value_or(0)) + ".*"};
    options.facts = {{"glu_pieces", tensor_parallel}, {"expert_glu_pieces", tensor_parallel}};
    return options;
  }

  /// Megatron's tensors, made of the published ones by the rules read backwards.
  void make_megatron(std::uint64_t tensor_parallel) {
    Family family = family_;
    for (const auto& [name, value] : options(tensor_parallel).facts)
      family.sizes.insert_or_assign(name, Expression::parse(std::to_string(value), "test"));
    const Scope scope = [&](const Captures& captures) { return names_in(config_, family, captures); };
    const Lookup lookup = [&](const std::string& name) -> std::optional<Shape> {
      const auto found = files_.find(name);
      return found == files_.end() || used_.count(name) > 0 ? std::nullopt : std::optional(found->second);
    };
    const std::uint64_t layers = *family.ranges.at("l").value(*scope({}));
    const auto predicted = family.ranges.find("k");
    const std::uint64_t prediction_layers = predicted == family.ranges.end() ? 0 : predicted->second.value(*scope({})).value_or(0);
    for (const Rule& rule : family.megatron) {
      if (!rule.refusal.empty()) continue;
      if (!rule.whole_is_stored) {
        take_apart(rule, layers, lookup, scope);
        continue;
      }
      if (rule.whole.text().starts_with("mtp.layers.{k}.")) {
        for (std::uint64_t k = 0; k < prediction_layers; ++k) make(rule, {{"k", std::to_string(k)}}, lookup, scope);
        continue;
      }
      if (!rule.stacked.empty() || rule.whole.text().find("layers.{l}") == std::string::npos) {
        if (rule.whole.variables().empty() && rule.pieces.front().name.variables().empty()) make(rule, {}, lookup, scope);
        continue;
      }
      for (std::uint64_t l = 0; l < layers; ++l) make(rule, {{"l", std::to_string(l)}}, lookup, scope);
    }
  }

  /// The pieces that a published tensor is joined from.
  void take_apart(const Rule& rule, std::uint64_t layers, const Lookup& lookup, const Scope& scope) {
    for (std::uint64_t l = 0; l < layers; ++l) {
      const std::string published = rule.whole.fill({{"l", std::to_string(l)}});
      const auto shape = lookup(published);
      if (!shape) continue;
      const auto pieces = split_whole(rule, published, *shape, scope);
      ASSERT_TRUE(pieces) << published;
      for (const Made& piece : *pieces) {
        Labelled tensor{piece.shape, std::vector<std::string>(volume(piece.shape))};
        for (const Term& term : piece.terms) fill(term, labelled(published, *shape), tensor);
        add(piece.name, std::move(tensor), {published});
      }
    }
  }

  void make(const Rule& rule, const Captures& captures, const Lookup& lookup, const Scope& scope) {
    if (rule.whole.variables().size() != captures.size()) return;
    const std::string name = rule.whole.fill(captures);
    if (megatron_.count(name) > 0) return;
    if (rule.rest_is_padding) {
      const std::string published = rule.pieces.front().name.fill(captures);
      const auto shape = lookup(published);
      if (!shape) return;
      Shape padded = *shape;
      padded[0] += padding_rows;
      Labelled tensor = labelled(published, padded);  // the first rows are those of the published tensor
      add(name, std::move(tensor), {published});
      return;
    }
    std::optional<Made> whole;
    try {
      whole = join_pieces(rule, name, std::nullopt, lookup, scope);
    } catch (const Error&) {
      return;  // some of its pieces belong to another rule (a layer without experts)
    }
    if (!whole) return;
    Labelled tensor{whole->shape, std::vector<std::string>(volume(whole->shape))};
    for (const Term& term : whole->terms) {
      const std::string& from = whole->from[term.source];
      fill(term, labelled(from, files_.at(from)), tensor);
    }
    if (whole->add != 0) {
      EXPECT_EQ(whole->add, -1) << name;
      for (std::string& element : tensor.elements) element += less_1;
    }
    add(name, std::move(tensor), {whole->from.begin(), whole->from.end()});
  }

  void add(const std::string& name, Labelled tensor, std::set<std::string> from) {
    used_.insert(from.begin(), from.end());
    made_of_[name] = std::move(from);
    megatron_.emplace(name, std::move(tensor));
  }

  [[nodiscard]] std::vector<TensorRow> rows() const {
    std::vector<TensorRow> rows;
    for (const auto& [name, tensor] : megatron_) rows.push_back({name, DType::f32, tensor.shape, 0});
    return rows;
  }

  /// The names that the rules give to the pieces of a stored tensor.
  [[nodiscard]] std::set<std::string> pieces_of(const std::string& name, const Shape& shape, const Scope& scope) const {
    std::set<std::string> names;
    for (const Rule& rule : family_.megatron) {
      const auto pieces = rule.whole_is_stored ? split_whole(rule, name, shape, scope) : std::nullopt;
      if (!pieces) continue;
      for (const Made& piece : *pieces) names.insert(piece.name);
      break;
    }
    return names;
  }

  void expect_published(const std::vector<TensorRow>& rows, const std::map<std::string, Labelled>& stored, std::uint64_t tensor_parallel) {
    const Mapping mapping = map_tensors(rows, config_, options(tensor_parallel), TieAnswer::not_asked);
    std::set<std::string> names, expected;
    for (const auto& [name, shape] : files_) expected.insert(name);
    for (const Target& target : mapping.targets.targets) {
      names.insert(target.name);
      ASSERT_EQ(to_string(target.shape), to_string(files_.at(target.name))) << target.name;
      Labelled tensor{target.shape, std::vector<std::string>(volume(target.shape))};
      for (const Term& term : target.terms) fill(term, stored.at(rows[term.source].name), tensor);
      if (target.computation) {
        EXPECT_EQ(target.computation->constant, 1);
        for (std::string& element : tensor.elements) {
          ASSERT_TRUE(element.ends_with(less_1)) << target.name;
          element.erase(element.find(less_1));
        }
      }
      EXPECT_EQ(tensor.elements, labelled(target.name, target.shape).elements) << target.name;
    }
    EXPECT_EQ(names, expected);
  }

  ModelConfig config_;
  Family family_;
  std::map<std::string, Shape> files_;
  std::map<std::string, Labelled> megatron_;
  std::map<std::string, std::set<std::string>> made_of_;
  std::set<std::string> used_;
};

TEST_P(MegatronFamilies, ThereAndBackWithOneTensorParallelRank) {
  make_megatron(1);
  expect_published(rows(), megatron_, 1);
}

TEST_P(MegatronFamilies, ThereAndBackWithTwoTensorParallelRanks) {
  make_megatron(2);
  expect_published(rows(), megatron_, 2);
}

TEST_P(MegatronFamilies, StackedLayersAreTakenApart) {
  make_megatron(1);
  std::map<std::string, std::map<std::uint64_t, const Labelled*>> by_stack;
  std::map<std::string, Labelled> stored;
  for (const auto& [name, tensor] : megatron_) {
    const auto captures = NamePattern::parse("decoder.layers.{l}.{rest*}", "test").match(name);
    if (!captures) {
      stored.emplace(name, tensor);
    } else {
      by_stack["decoder.layers." + *find_capture(*captures, "rest")][std::stoull(*find_capture(*captures, "l"))] = &tensor;
    }
  }
  const std::size_t layers = *family_.ranges.at("l").value(*names_in(config_, family_, {}));
  for (const auto& [name, by_layer] : by_stack) {
    if (by_layer.size() != layers) GTEST_SKIP() << "layers differ, which Megatron does not stack";
    Labelled stack{{layers}, {}};
    for (const std::uint64_t extent : by_layer.at(0)->shape) stack.shape.push_back(extent);
    for (const auto& [layer, tensor] : by_layer)
      stack.elements.insert(stack.elements.end(), tensor->elements.begin(), tensor->elements.end());
    stored.emplace(name, std::move(stack));
  }
  std::vector<TensorRow> rows;
  for (const auto& [name, tensor] : stored) rows.push_back({name, DType::f32, tensor.shape, 0});
  expect_published(rows, stored, 1);
}

/// `decoder.layers.{layer}.mlp.experts.linear_fc1.weight{expert}` as the tensor of all experts.
std::string of_all_experts(std::string name) {
  for (const std::string part : {"mlp.experts.local_experts.{expert}.", "mlp.experts."}) {
    const std::size_t at = name.find(part);
    if (at == std::string::npos) continue;
    name.replace(at, part.size(), "mlp.experts.experts.");
    const std::size_t number = name.find("{expert}");
    if (number != std::string::npos) name.erase(number);
    break;
  }
  return name;
}

/// `name` of layer 1, and `from` replaced.
std::string with_layer(std::string name, const std::string& from, const std::string& to) {
  if (const std::size_t at = name.find("{layer}"); at != std::string::npos) name.replace(at, 7, "1");
  if (const std::size_t at = name.find(from); !from.empty() && at != std::string::npos) name.replace(at, from.size(), to);
  return name;
}

TEST_P(MegatronFamilies, HasTheNamesOfOtherConverters) {
  const Json tables = read_json(data_folder() / "megatron_names.json");
  if (!tables.contains(config_.model_type())) GTEST_SKIP() << "no converter's table";
  make_megatron(1);
  const Scope scope = [&](const Captures& captures) { return names_in(config_, family_, captures); };
  std::size_t compared = 0;
  for (const Json& row : tables.at(config_.model_type())) {
    std::set<std::string> expected;
    for (const std::string published : row.at(1)) {
      const NamePattern pattern = NamePattern::parse(with_layer(published, "{expert}", "{e}"), "test");
      for (const auto& [file, shape] : files_) {
        if (pattern.match(file)) expected.insert(file);
      }
    }
    if (expected.empty()) continue;  // not in this configuration
    const auto whole = std::find_if(made_of_.begin(), made_of_.end(), [&](const auto& one) { return one.second == expected; });
    ASSERT_TRUE(whole != made_of_.end()) << row.at(0);
    for (const std::string stored : row.at(0)) {
      const std::string name = megatron_name(family_, scope, of_all_experts(with_layer(stored, "", "")));
      EXPECT_EQ(pieces_of(name, megatron_.at(whole->first).shape, scope), expected) << stored;
      ++compared;
    }
  }
  EXPECT_GT(compared, 6U);
}

INSTANTIATE_TEST_SUITE_P(Transformers, MegatronFamilies, testing::ValuesIn(language_models()),
                         [](const auto& family) { return family.param; });

TEST(MegatronFamilyNames, HoldWhatIsPromised) {
  const std::vector<std::string> names = megatron_family_names();
  for (const char* name :
       {"llama",  "mistral",     "mixtral",     "qwen2",       "qwen2_moe",  "qwen3",    "qwen3_moe",   "gemma",      "gemma2",
        "gemma3", "gemma3_text", "deepseek_v2", "deepseek_v3", "glm4",       "gpt_oss",  "phi3",        "starcoder2", "falcon",
        "gpt2",   "gpt_neox",    "nemotron",    "qwen2_vl",    "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe"})
    EXPECT_TRUE(std::find(names.begin(), names.end(), name) != names.end()) << name;
}

TEST(MegatronFamilyNames, AVisionTowerOfTransformers5GetsThePublishedVisionModel) {
  const ModelConfig config = ModelConfig::parse(
      R"({"model_type": "gemma3", "text_config": {"model_type": "gemma3_text"}, "vision_config": {"model_type": "siglip_vision_model"}})",
      "config.json");
  MapOptions options;
  options.names_are_published = false;
  options.allow_missing = {"*"};
  const std::string published = "vision_tower.vision_model.encoder.layers.0.layer_norm1.weight";
  for (const std::string& stored : {std::string("vision_tower.encoder.layers.0.layer_norm1.weight"), published}) {
    const Mapping mapping = map_tensors({{stored, DType::f32, {4}, 0}}, config, options, TieAnswer::not_asked);
    ASSERT_EQ(mapping.targets.targets.size(), 1U);
    EXPECT_EQ(mapping.targets.targets.front().name, published);
  }
}

TEST(MegatronFamilyNames, AnUnknownTypeIsRefusedWithTheKnownOnes) {
  const ModelConfig config = ModelConfig::parse(R"({"model_type": "never_heard_of"})", "config.json");
  MapOptions options;
  options.names_are_published = false;
  try {
    static_cast<void>(map_tensors({{"decoder.final_layernorm.weight", DType::f32, {4}, 0}}, config, options, TieAnswer::not_asked));
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::unsupported);
    for (const char* part : {"never_heard_of", "qwen3_moe", "docs/families.md"})
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
  }
}

std::string refusal(const std::string& config, const std::string& name, const Shape& shape, const Facts& facts) {
  MapOptions options;
  options.names_are_published = false;
  options.facts = facts;
  try {
    static_cast<void>(
        map_tensors({{name, DType::f32, shape, 0}}, ModelConfig::parse(config, "config.json"), options, TieAnswer::not_asked));
  } catch (const Error& error) {
    return error.code() == ErrorCode::unsupported ? error.what() : "not unsupported: " + std::string(error.what());
  }
  return "";
}

TEST(MegatronFamilyNames, WhatNobodyKnowsIsRefusedWithTheReason) {
  const std::string norm = "decoder.final_layernorm.weight";
  EXPECT_NE(refusal(R"({"model_type": "olmo2"})", norm, {4}, {})
                .find("'olmo2': no rules for Megatron's names of such a model, because three converters"),
            std::string::npos);
  const std::string qkv = "decoder.layers.self_attention.linear_qkv.weight";
  EXPECT_EQ(refusal(R"({"model_type": "olmoe", "num_attention_heads": 1, "hidden_size": 4})", qkv, {1, 12, 4}, {{"tensor_parallel", 1}})
                .find(qkv + ": with args, which Megatron-Bridge does not save"),
            0U);
  EXPECT_EQ(refusal(R"({"model_type": "nemotron_h"})", "decoder.layers.2.mlp.fc1_latent_proj.weight", {4, 8}, {})
                .find("decoder.layers.2.mlp.fc1_latent_proj"),
            0U);
}

class MegatronArguments : public testing::Test {
 protected:
  /// What is refused of a norm, which fits whatever the heads are; "exit code: text".
  [[nodiscard]] static std::string refused(const std::string& config, const Facts& facts, const Facts& overrides = {}) {
    MapOptions options;
    options.names_are_published = false;
    options.facts = facts;
    options.allow_missing = {"*"};
    ModelConfig model = ModelConfig::parse(config, "config.json");
    for (const auto& [key, value] : overrides) model.override_number(key, value);
    try {
      static_cast<void>(map_tensors({{"decoder.final_layernorm.weight", DType::f32, {16}, 0}}, model, options, TieAnswer::not_asked));
    } catch (const Error& error) {
      return std::to_string(static_cast<int>(error.code())) + ": " + error.what();
    }
    return "";
  }
  static std::string code(ErrorCode code) { return std::to_string(static_cast<int>(code)) + ": "; }
  const std::string llama_ =
      R"({"model_type": "llama", "num_hidden_layers": 2, "hidden_size": 16, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 8})";
  const Facts args_{{"args_layers", 2}, {"args_hidden_size", 16}, {"args_heads", 4}, {"args_groups", 2}, {"args_head_dim", 4}};
};

TEST_F(MegatronArguments, HeadsThatFitTheShapesAnotherWayAreRefused) {
  EXPECT_EQ(refused(llama_, args_), "");
  EXPECT_EQ(refused(llama_, {}), "");
  EXPECT_EQ(refused(llama_, args_, {{"num_attention_heads", 2}, {"num_key_value_heads", 1}, {"head_dim", 8}})
                .find(code(ErrorCode::bad_input) +
                      "config.json: says num_attention_heads 2, num_key_value_heads 1, head_dim 8 (options included), but args in the "
                      "checkpoint say num_attention_heads 4, num_query_groups 2, kv_channels 4; "),
            0U);
  EXPECT_NE(refused(llama_, args_, {{"num_hidden_layers", 1}}).find("num_layers 2;"), std::string::npos);
}

TEST_F(MegatronArguments, FamiliesHaveTheirOwnNamesForTheNumbers) {
  const std::string falcon =
      R"({"model_type": "falcon", "num_hidden_layers": 2, "hidden_size": 16, "num_attention_heads": 4, "multi_query": true, "vocab_size": 8})";
  EXPECT_NE(refused(falcon, {{"args_groups", 4}}).find("num_query_groups 4;"), std::string::npos);
  EXPECT_EQ(refused(falcon, {{"args_groups", 1}, {"args_heads", 4}, {"args_head_dim", 4}}), "");
  const std::string mixtral =
      R"({"model_type": "mixtral", "num_hidden_layers": 2, "hidden_size": 16, "num_attention_heads": 4, "num_local_experts": 4, "vocab_size": 8})";
  EXPECT_NE(refused(mixtral, {{"args_experts", 8}}).find("num_experts 8;"), std::string::npos);
}

TEST_F(MegatronArguments, RotatedNeighboursAreOnlyForFamiliesThatRotateThem) {
  EXPECT_EQ(refused(llama_, {{"rotary_interleaved", 1}}).find(code(ErrorCode::unsupported) + "args.rotary_interleaved is set"), 0U);
  const std::string glm4 =
      R"({"model_type": "glm4", "num_hidden_layers": 2, "hidden_size": 16, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 8})";
  EXPECT_EQ(refused(glm4, {{"rotary_interleaved", 1}}), "");
}

class HalfTranslated : public testing::Test {
 protected:
  HalfTranslated() {
    options_.names_are_published = false;
    options_.custom_mapping_path = "names.json";
    options_.custom_mapping = R"({"self_attention.out_mix": "self_attn.o_proj"})";
    options_.allow_missing = {"*"};
  }
  [[nodiscard]] std::vector<std::string> published(const std::string& name, const Shape& shape) const {
    std::vector<std::string> names;
    for (const Target& target : map_tensors({{name, DType::f32, shape, 0}}, config_, options_, TieAnswer::not_asked).targets.targets)
      names.push_back(target.name + " " + to_string(target.shape));
    return names;
  }
  ModelConfig config_ =
      ModelConfig::parse(R"({"model_type": "llama", "num_hidden_layers": 2, "num_attention_heads": 2, "hidden_size": 4})", "config.json");
  MapOptions options_;
};

TEST_F(HalfTranslated, ANameIsMappedAsItsRuleDoes) {
  EXPECT_EQ(published("decoder.layers.1.self_attention.out_mix.weight", {4, 4}),
            (std::vector<std::string>{"model.layers.1.self_attn.o_proj.weight [4, 4]"}));
  EXPECT_EQ(published("decoder.layers.self_attention.out_mix.weight", {2, 4, 4}),
            (std::vector<std::string>{"model.layers.0.self_attn.o_proj.weight [4, 4]", "model.layers.1.self_attn.o_proj.weight [4, 4]"}));
}

TEST_F(HalfTranslated, ItsPartsAreJoinedAsItsRuleDoes) {
  const NameHelp help = name_help(config_, options_);
  const auto placement = [&](const std::string& name) {
    for (const auto& [glob, how] : help.placements) {
      if (glob_matches(glob, name)) return how;
    }
    return std::string("none");
  };
  EXPECT_EQ(placement("decoder.layers.1.self_attn.o_proj.weight"), "1");
  EXPECT_EQ(placement("decoder.layers.1.self_attn.q_proj.weight"), "0");
  EXPECT_EQ(placement("model.layers.1.self_attn.o_proj.weight"), "1");
  EXPECT_EQ(placement("decoder.layers.1.never_heard_of.weight"), "none");
}

TEST_F(HalfTranslated, AnUnmappedTensorIsNamed) {
  options_.custom_mapping = R"({"nothing": "else"})";
  try {
    static_cast<void>(published("decoder.layers.1.self_attention.out_mix.weight", {4, 4}));
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::bad_input);
    EXPECT_EQ(std::string(error.what()).find("decoder.layers.1.self_attention.out_mix.weight: no rule of the family 'llama'"), 0U)
        << error.what();
  }
}

TEST_F(HalfTranslated, ATranslatedTensorThatTheModelLacksIsNamed) {
  options_.custom_mapping_path.clear();
  for (const char* name : {"decoder.layers.1.self_attention.q_layernorm.weight", "decoder.layers.2.input_layernorm.weight"}) {
    try {
      static_cast<void>(published(name, {4}));
      ADD_FAILURE() << name;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::bad_input);
      EXPECT_NE(std::string(error.what()).find("config.json implies no such tensor"), std::string::npos) << error.what();
    }
  }
}

}  // namespace
}  // namespace unshard
