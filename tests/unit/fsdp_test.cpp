// Which rank files make a checkpoint; and, on files written by torch, what their headers say.
#include "formats/fsdp.h"

#include <gtest/gtest.h>

#include "support/node_files.h"

namespace unshard {
namespace {

using test::NodeFiles;
using test::ScratchFolder;
using Names = std::vector<std::string>;

std::string rank_file(unsigned world_size, unsigned rank) {
  return "model_world_size_" + std::to_string(world_size) + "_rank_" + std::to_string(rank) + ".pt";
}

Source described(const ScratchFolder& disk, const Names& roots = {"/c"}) {
  NodeFiles files(disk.path());
  const auto comm = self_comm();
  return fsdp_format().describe(list_tree(*comm, files, roots), roots);
}

std::string refused(const ScratchFolder& disk, const Names& roots = {"/c"}) {
  try {
    static_cast<void>(described(disk, roots));
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::bad_input);
    return error.what();
  }
  ADD_FAILURE() << "not refused";
  return "";
}

/// `subject: text` of the findings of one severity.
Names findings(const std::vector<Finding>& all, Severity severity) {
  Names texts;
  for (const Finding& finding : all) {
    if (finding.severity == severity) texts.push_back(finding.subject + ": " + finding.text);
  }
  return texts;
}

bool any_says(const Names& texts, const std::string& part) {
  for (const std::string& text : texts) {
    if (text.find(part) != std::string::npos) return true;
  }
  return false;
}

TEST(FsdpDescribe, ListsFilesByRank) {
  ScratchFolder disk;
  for (const unsigned rank : {10U, 2U, 0U, 1U, 3U, 4U, 5U, 6U, 7U, 8U, 9U}) disk.write("c/" + rank_file(11, rank), "x");
  const Source source = described(disk);
  ASSERT_EQ(source.files.size(), 11U);
  for (unsigned rank = 0; rank < 11; ++rank) EXPECT_EQ(source.files[rank].rank, rank);
  EXPECT_EQ(source.world_size, 11U);
  EXPECT_TRUE(source.findings.empty());
}

TEST(FsdpDescribe, NamesMissingRanksAsRanges) {
  ScratchFolder disk;
  for (unsigned rank = 8; rank < 16; ++rank) disk.write("c/" + rank_file(16, rank), "x");
  EXPECT_TRUE(any_says(findings(described(disk).findings, Severity::error), "missing ranks 0-7 of 16"));
  ScratchFolder two;
  two.write("c/" + rank_file(4, 1), "x");
  two.write("c/" + rank_file(4, 3), "x");
  EXPECT_TRUE(any_says(findings(described(two).findings, Severity::error), "missing ranks 0, 2 of 4"));
  ScratchFolder one;
  one.write("c/" + rank_file(2, 0), "x");
  EXPECT_TRUE(any_says(findings(described(one).findings, Severity::error), "missing rank 1 of 2"));
}

TEST(FsdpDescribe, EndsForAnAbsurdWorldSize) {
  ScratchFolder disk;
  disk.write("c/" + rank_file(16000000, 7), "x");
  EXPECT_TRUE(any_says(findings(described(disk).findings, Severity::error), "missing ranks 0-6, 8-15999999 of 16000000"));
}

TEST(FsdpDescribe, IgnoresWhatIsNoRankFile) {
  ScratchFolder disk;
  disk.write("c/" + rank_file(1, 0), "x");
  for (const char* name : {"model_world_size_1_rank_0.pt.tmp", "model_world_size_01_rank_0.pt", "model_world_size_0_rank_0.pt",
                           "model_world_size_1_rank_-1.pt", "model_world_size_99999999999_rank_0.pt", "model_world_size_1_rank_.pt",
                           "xmodel_world_size_1_rank_0.pt"}) {
    disk.write(std::string("c/") + name, "x");
  }
  EXPECT_EQ(described(disk).files.size(), 1U);
  EXPECT_TRUE(described(disk).findings.empty());
}

TEST(FsdpDescribe, FsdpConfigDecidesAmongWorldSizes) {
  ScratchFolder disk;
  for (const unsigned size : {2U, 4U}) {
    for (unsigned rank = 0; rank < size; ++rank) disk.write("c/" + rank_file(size, rank), "x");
  }
  const std::string text = refused(disk);
  EXPECT_NE(text.find("world size 2"), std::string::npos) << text;
  EXPECT_NE(text.find("world size 4"), std::string::npos) << text;
  disk.write("c/fsdp_config.json", R"({"FSDP_version": 2, "world_size": 2})");
  const Source source = described(disk);
  EXPECT_EQ(source.world_size, 2U);
  EXPECT_EQ(source.files.size(), 2U);
  EXPECT_TRUE(findings(source.findings, Severity::error).empty());
  EXPECT_TRUE(any_says(findings(source.findings, Severity::note), "world size 4"));
}

TEST(FsdpDescribe, RefusesABadFsdpConfigByName) {
  ScratchFolder disk;
  disk.write("c/" + rank_file(1, 0), "x");
  for (const char* text : {"", "{", "[]", R"({"world_size": "2"})", R"({"world_size": 0})", R"({"world_size": -1})",
                           R"({"world_size": 2.5})", R"({"world_size": 18446744073709551615})", R"({"world_size": [[[[1]]]]})"}) {
    disk.write("c/fsdp_config.json", text);
    EXPECT_NE(refused(disk).find("/c/fsdp_config.json"), std::string::npos) << text;
  }
  disk.write("c/fsdp_config.json", std::string(20000, '[') + std::string(20000, ']'));
  EXPECT_NE(refused(disk).find("/c/fsdp_config.json"), std::string::npos);
  disk.write("c/fsdp_config.json", R"({"FSDP_version": 2})");
  EXPECT_EQ(described(disk).world_size, 1U);
}

TEST(FsdpDescribe, FindsFilesThatCanNotBeRead) {
  ScratchFolder disk;
  disk.write("c/" + rank_file(4, 0), "x");
  disk.write("c/" + rank_file(4, 1), "");
  disk.write("c/" + rank_file(4, 2) + "/inside", "x");
  std::filesystem::create_symlink("gone", disk.path() + "/c/" + rank_file(4, 3));
  const Source source = described(disk);
  EXPECT_EQ(source.files.size(), 1U);
  const Names errors = findings(source.findings, Severity::error);
  EXPECT_EQ(errors.size(), 3U);
  EXPECT_TRUE(any_says(errors, rank_file(4, 1) + ": is empty"));
  EXPECT_TRUE(any_says(errors, rank_file(4, 2) + ": is a folder"));
  EXPECT_TRUE(any_says(errors, rank_file(4, 3) + ": is a dead link"));
}

TEST(FsdpDescribe, NotesOptimizerFilesOfSomeRanksOnly) {
  ScratchFolder disk;
  for (unsigned rank = 0; rank < 4; ++rank) disk.write("c/" + rank_file(4, rank), "x");
  EXPECT_TRUE(described(disk).findings.empty());
  disk.write("c/optim_world_size_4_rank_0.pt", "x");
  disk.write("c/optim_world_size_4_rank_1.pt", "x");
  const Source source = described(disk);
  EXPECT_TRUE(findings(source.findings, Severity::error).empty());
  EXPECT_TRUE(any_says(findings(source.findings, Severity::note), "optimizer files: missing ranks 2-3 of 4"));
}

TEST(FsdpDescribe, OneRankInTwoFoldersIsACopyOrAContradiction) {
  ScratchFolder disk;
  disk.write("a/" + rank_file(1, 0), "xx");
  disk.write("b/" + rank_file(1, 0), "yy");
  disk.write("d/" + rank_file(1, 0), "xxx");
  const Source source = described(disk, {"/a", "/b"});
  ASSERT_EQ(source.files.size(), 1U);
  ASSERT_EQ(source.files[0].copies.size(), 1U);
  EXPECT_EQ(source.files[0].copies[0].path, "/b/" + rank_file(1, 0));
  const std::string text = refused(disk, {"/a", "/d"});
  EXPECT_NE(text.find("/a/"), std::string::npos);
  EXPECT_NE(text.find("/d/"), std::string::npos);
}

}  // namespace
}  // namespace unshard
