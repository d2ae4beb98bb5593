// The command `inspect`, on real files of tests/cases.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "support/command_run.h"
#include "support/safetensors_text.h"

namespace unshard {
namespace {

using nlohmann::json;
using testing::safetensors;
using testing::TemporaryFolder;
using testing::write_file;

std::string case_path(const std::string& name) {
  return std::string(UNSHARD_CASES) + "/" + name;
}

/// What is printed.
std::string text_of(int ranks, const std::string& path) {
  return testing::run_command(ranks, [&](const Session& session) { EXPECT_EQ(inspect(session, path, false), ""); }).out;
}

json json_of(int ranks, const std::string& path) {
  json result;
  testing::run_command(ranks, [&](const Session& session) {
    const std::string text = inspect(session, path, true);
    if (session.comm.rank() == 0) result = json::parse(text);
  });
  return result;
}

const json* find(const json& tensors, const std::string& name) {
  for (const json& tensor : tensors) {
    if (tensor["name"] == name) return &tensor;
  }
  return nullptr;
}

TEST(Inspect, ShowsTheTensorsOfARankFileAndTheirPlacements) {
  const std::string path = case_path("fsdp/check_complete/fsdp2/model_world_size_4_rank_1.pt");
  const std::string got = text_of(2, path);
  EXPECT_NE(got.find("model.embed_tokens.weight  bfloat16  [50, 16]  DTensor (Shard(0)) on mesh [4] at [1], local [13, 16]"),
            std::string::npos)
      << got;
  const json result = json_of(2, path);
  const json* embedding = find(result["tensors"], "model.embed_tokens.weight");
  ASSERT_NE(embedding, nullptr);
  EXPECT_EQ((*embedding)["shape"], (json{50, 16}));
  EXPECT_EQ((*embedding)["dtype"], "bfloat16");
}

TEST(Inspect, ShowsAFolderAsOneCheckpoint) {
  const json result = json_of(3, case_path("fsdp/check_complete/fsdp2"));
  const json* embedding = find(result["tensors"], "model.embed_tokens.weight");
  ASSERT_NE(embedding, nullptr);
  EXPECT_EQ((*embedding)["stored_as"], "Shard(0) in 4 chunks");
  EXPECT_EQ(result, json_of(1, case_path("fsdp/check_complete/fsdp2")));
}

TEST(Inspect, ShowsASafetensorsFileWhateverItsName) {
  const TemporaryFolder folder;
  write_file(folder / "blob", safetensors(R"({"__metadata__":{"format":"pt"},"w":{"dtype":"BF16","shape":[2,3],"data_offsets":[0,12]}})",
                                          std::string(12, 'x')));
  const std::string got = text_of(1, folder / "blob");
  EXPECT_NE(got.find("safetensors file, 1 tensor\n"), std::string::npos) << got;
  EXPECT_NE(got.find("w  bfloat16  [2, 3]"), std::string::npos) << got;
  EXPECT_NE(got.find("__metadata__ format: pt"), std::string::npos) << got;
}

TEST(Inspect, NamesObjectsWithoutRunningThem) {
  const std::string got = text_of(1, case_path("hostile/code_in_spare_object/os_system/model_world_size_1_rank_0.pt"));
  EXPECT_NE(got.find("posix.system"), std::string::npos) << got;
}

TEST(Inspect, RefusesWhatIsNoCheckpoint) {
  const TemporaryFolder folder;
  write_file(folder / "text", "<html>404</html>");
  const auto failure = [](const std::string& path) {
    return testing::failure_of(2, [&](const Session& session) { (void)inspect(session, path, false); });
  };
  EXPECT_TRUE(failure(folder / "text").starts_with("bad_input: ")) << failure(folder / "text");
  EXPECT_NE(failure(folder / "nothing").find("is not there"), std::string::npos);
}

TEST(Inspect, DoesNotPrintControlCharacters) {
  for (const std::string name : {"escape", "newline", "nul"}) {
    const std::string got = text_of(1, case_path("hostile/odd_tensor_names/" + name + "/model.safetensors"));
    EXPECT_EQ(got.find('\x1b'), std::string::npos) << name;
    EXPECT_EQ(got.find("\nunshard: error: fake"), std::string::npos) << name;
  }
}

}  // namespace
}  // namespace unshard
