// Every family against what transformers itself writes: tests/data/families/*.json, made by tests/data/make_families.py.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "families/families.h"
#include "unshard/error.h"
#include "unshard/mapping.h"

namespace unshard {
namespace {

using Json = nlohmann::ordered_json;
namespace fs = std::filesystem;

fs::path data_folder() {
  return fs::path(UNSHARD_CASES).parent_path() / "data" / "families";
}

std::vector<TensorRow> rows_of(const Json& list) {
  std::vector<TensorRow> rows;
  for (const Json& one : list) rows.push_back({one.at(0), DType::f32, Shape(one.at(1).get<std::vector<std::uint64_t>>()), 0});
  return rows;
}

std::vector<std::string> text_of(const std::vector<TensorRow>& rows) {
  std::vector<std::string> text;
  for (const TensorRow& row : rows) text.push_back(row.name + " " + to_string(row.shape));
  return text;
}

std::vector<std::string> text_of(const std::vector<Target>& targets) {
  std::vector<std::string> text;
  for (const Target& target : targets) text.push_back(target.name + " " + to_string(target.shape));
  return text;
}

Json read_golden(const std::string& name) {
  std::ifstream file(data_folder() / (name + ".json"));
  return Json::parse(file);
}

class Families : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    const Json golden = read_golden(GetParam());
    config_ = ModelConfig::parse(golden.at("config").dump(1), "config.json");
    modules_ = rows_of(golden.at("modules"));
    files_ = rows_of(golden.at("files"));
  }

  /// Some families know names only.
  [[nodiscard]] bool has_table() const {
    const std::set<std::string> names_only{"aria",
                                           "aya_vision",
                                           "cohere2_vision",
                                           "ernie4_5_moe",
                                           "exaone_moe",
                                           "granitemoe",
                                           "granitemoehybrid",
                                           "granitemoeshared",
                                           "jamba",
                                           "lfm2_moe",
                                           "lfm2_vl",
                                           "mimo_v2_flash",
                                           "phimoe",
                                           "qwen2_5_omni_thinker",
                                           "qwen3_omni_moe",
                                           "qwen3_omni_moe_thinker"};
    const bool has_one = !family_of(config_.model_type(), config_).tensors.empty();
    EXPECT_EQ(has_one, !names_only.contains(GetParam()));
    return has_one;
  }

  [[nodiscard]] Mapping map(const std::vector<TensorRow>& rows, const MapOptions& options = {}) const {
    return map_tensors(rows, config_, options, tie_question(rows, config_, options) ? TieAnswer::equal : TieAnswer::not_asked);
  }

  ModelConfig config_;
  std::vector<TensorRow> modules_, files_;
};

TEST_P(Families, ModulesBecomeTheFilesOfTransformersInItsOrder) {
  const Mapping mapping = map(modules_);
  EXPECT_EQ(text_of(mapping.targets.targets), text_of(files_));
  EXPECT_TRUE(mapping.warnings.empty());
  EXPECT_TRUE(mapping.notes.empty()) << mapping.notes.front();
  const bool has_copy = std::any_of(modules_.begin(), modules_.end(), [](const TensorRow& row) { return row.name == "lm_head.weight"; });
  EXPECT_EQ(mapping.targets.unused.size(), config_.flag("tie_word_embeddings").value_or(false) && has_copy ? 1U : 0U);
}

TEST_P(Families, FilesPassThrough) {
  std::vector<std::string> mapped = text_of(map(files_).targets.targets);
  std::vector<std::string> expected = text_of(files_);
  std::sort(mapped.begin(), mapped.end());
  std::sort(expected.begin(), expected.end());
  EXPECT_EQ(mapped, expected);
}

TEST_P(Families, ATensorLessIsMissing) {
  if (!has_table()) return;
  for (std::size_t i = 0; i < files_.size(); ++i) {
    std::vector<TensorRow> rows = files_;
    const std::string name = rows[i].name;
    rows.erase(rows.begin() + static_cast<std::ptrdiff_t>(i));
    // Parts of other modalities, other heads and optional buffers are in no table.
    const bool in_table = name.find("visual.") == std::string::npos && name.find("vision_tower.") == std::string::npos &&
                          name.find("projector.") == std::string::npos && name != "image_newline" &&
                          name.find("score.") == std::string::npos && name.find("e_score_correction_bias") == std::string::npos;
    try {
      static_cast<void>(map(rows));
      EXPECT_FALSE(in_table) << name;
    } catch (const Error& error) {
      EXPECT_TRUE(in_table) << error.what();
      EXPECT_EQ(error.code(), ErrorCode::bad_input);
      EXPECT_NE(std::string(error.what()).find(name), std::string::npos) << error.what();
    }
  }
}

TEST_P(Families, AWrongShapeIsNamedWithBoth) {
  if (!has_table()) return;
  for (TensorRow& row : files_) {
    if (row.name.find("norm") == std::string::npos || row.name.find("vis") != std::string::npos ||
        row.name.find("projector") != std::string::npos)
      continue;
    row.shape[0] += 1;
    try {
      static_cast<void>(map(files_));
      ADD_FAILURE() << row.name;
    } catch (const Error& error) {
      EXPECT_EQ(std::string(error.what()).find(row.name + ": shape " + to_string(row.shape)), 0U) << error.what();
      EXPECT_NE(std::string(error.what()).find("config.json"), std::string::npos);
    }
    return;
  }
}

TEST_P(Families, ModulesFollowAFolderOfModules) {
  MapOptions options;
  options.like = LikeFolder{"like", modules_};
  const Mapping mapping = map(files_, options);
  std::vector<std::string> mapped = text_of(mapping.targets.targets);
  std::vector<std::string> expected = text_of(modules_);
  if (config_.flag("tie_word_embeddings").value_or(false))
    std::erase_if(expected, [](const std::string& text) { return text.rfind("lm_head.weight ", 0) == 0; });
  std::sort(mapped.begin(), mapped.end());
  std::sort(expected.begin(), expected.end());
  EXPECT_EQ(mapped, expected);
}

std::vector<std::string> all_families() {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(data_folder())) names.push_back(entry.path().stem().string());
  std::sort(names.begin(), names.end());
  return names;
}

INSTANTIATE_TEST_SUITE_P(Transformers, Families, testing::ValuesIn(all_families()), [](const auto& family) { return family.param; });

/// A tiny LLaVA: its tower is a CLIP model, whose `vision_model` the modules of transformers 5 lack.
class VisionTowers : public testing::Test {
 protected:
  static constexpr std::string_view inner = "vision_tower.vision_model.";

  void SetUp() override {
    const Json golden = read_golden("llava");
    config_ = ModelConfig::parse(golden.at("config").dump(1), "config.json");
    modules_ = rows_of(golden.at("modules"));
    files_ = rows_of(golden.at("files"));
    bare_files_ = files_;
    for (TensorRow& row : bare_files_) replace(row.name, inner, "vision_tower.");
    old_modules_ = modules_;
    for (TensorRow& row : old_modules_) replace(row.name, "model.vision_tower.", "model." + std::string(inner));
  }

  static void replace(std::string& name, std::string_view from, std::string_view to) {
    if (name.starts_with(from)) name.replace(0, from.size(), to);
  }

  [[nodiscard]] std::vector<std::string> mapped(const std::vector<TensorRow>& rows, const std::vector<TensorRow>& like = {}) const {
    MapOptions options;
    if (!like.empty()) options.like = LikeFolder{"like", like};
    return sorted(text_of(map_tensors(rows, config_, options, TieAnswer::not_asked).targets.targets));
  }

  static std::vector<std::string> sorted(std::vector<std::string> texts) {
    std::sort(texts.begin(), texts.end());
    return texts;
  }

  ModelConfig config_;
  std::vector<TensorRow> modules_, old_modules_, files_, bare_files_;
};

TEST_F(VisionTowers, ModulesOfEveryVersionGetThePublishedNames) {
  EXPECT_EQ(mapped(modules_), sorted(text_of(files_)));
  EXPECT_EQ(mapped(old_modules_), sorted(text_of(files_)));
}

TEST_F(VisionTowers, FilesKeepTheirNames) {
  EXPECT_EQ(mapped(files_), sorted(text_of(files_)));
  EXPECT_EQ(mapped(bare_files_), sorted(text_of(bare_files_)));
}

TEST_F(VisionTowers, TheLikeFolderSaysWhetherTheNamesHaveVisionModel) {
  const std::vector<std::vector<TensorRow>> forms = {modules_, old_modules_, files_, bare_files_};
  for (const std::vector<TensorRow>& from : forms) {
    for (const std::vector<TensorRow>& like : forms) EXPECT_EQ(mapped(from, like), sorted(text_of(like))) << like.back().name;
  }
}

TEST_F(VisionTowers, AConfigWithoutTheTowersTypeMeansTheUsualOne) {
  Json config = read_golden("llava").at("config");
  config.at("vision_config").erase("model_type");
  config_ = ModelConfig::parse(config.dump(), "config.json");
  EXPECT_EQ(mapped(modules_), sorted(text_of(files_)));
}

TEST_F(VisionTowers, OnlyThoseOfClipsKindHaveIt) {
  Json config = read_golden("llava").at("config");
  for (const char* type :
       {"clip_vision_model", "siglip_vision_model", "siglip2_vision_model", "chinese_clip_vision_model", "mlcd_vision_model", "dinov2"}) {
    config.at("vision_config").at("model_type") = type;
    config_ = ModelConfig::parse(config.dump(), "config.json");
    const bool has_it =
        std::string_view(type).find("clip_vision") != std::string_view::npos || std::string_view(type).starts_with("siglip");
    EXPECT_EQ(mapped(modules_), sorted(text_of(has_it ? files_ : bare_files_))) << type;
  }
}

// As llava-onevision-qwen2-0.5b is published: configuration_llava_onevision.py passes on what text_config says.
TEST(Ties, AreThoseOfTheLanguageModelWhereTheTopSaysFalse) {
  Json golden = read_golden("llava_onevision");
  golden.at("config")["tie_word_embeddings"] = false;
  golden.at("config").at("text_config")["tie_word_embeddings"] = true;
  const ModelConfig config = ModelConfig::parse(golden.at("config").dump(), "config.json");
  std::vector<TensorRow> files = rows_of(golden.at("files"));
  ASSERT_EQ(std::erase_if(files, [](const TensorRow& row) { return row.name == "language_model.lm_head.weight"; }), 1U);
  EXPECT_EQ(map_tensors(files, config, {}, TieAnswer::not_asked).targets.targets.size(), files.size());
  // A head that is there is a copy.
  EXPECT_EQ(map_tensors(rows_of(golden.at("files")), config, {}, TieAnswer::equal).targets.targets.size(), files.size());
}

TEST(FamilyNames, AreSortedAndUnique) {
  const std::vector<std::string> names = family_names();
  EXPECT_TRUE(std::is_sorted(names.begin(), names.end()));
  EXPECT_EQ(std::set<std::string>(names.begin(), names.end()).size(), names.size());
  EXPECT_TRUE(std::find(names.begin(), names.end(), "qwen3_moe") != names.end());
}

}  // namespace
}  // namespace unshard
