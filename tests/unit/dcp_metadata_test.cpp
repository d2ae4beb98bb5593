// Metadata of torch.distributed.checkpoint: what real ones say, what made-up ones may not say, and real ones cut and changed at every byte.
#include "formats/dcp_metadata.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>

#include "support/dcp_text.h"
#include "support/memory_file.h"
#include "unshard/error.h"

namespace unshard {
namespace {

using namespace unshard::testing;
using namespace unshard::testing::pickled;

std::string content_of(const std::string& path) {
  std::ifstream in(std::filesystem::path(UNSHARD_CASES) / path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

std::vector<DcpEntry> read(const std::string& content) {
  MemoryFile file(content);
  return read_dcp_metadata(file, ".metadata");
}

const DcpEntry& named(const std::vector<DcpEntry>& entries, const std::string& name) {
  const auto found = std::find_if(entries.begin(), entries.end(), [&](const DcpEntry& entry) { return entry.name == name; });
  if (found == entries.end()) throw Error(ErrorCode::internal, "no entry " + name);
  return *found;
}

/// The text of the one-line refusal, which names the file.
std::string refusal(const std::string& content) {
  try {
    static_cast<void>(read(content));
    return "";
  } catch (const Error& error) {
    const std::string text = error.what();
    EXPECT_TRUE(error.code() == ErrorCode::bad_input || error.code() == ErrorCode::unsupported) << text;
    EXPECT_TRUE(text.starts_with(".metadata: ")) << text;
    EXPECT_EQ(text.find('\n'), std::string::npos) << text;
    return text;
  }
}

#define EXPECT_SAYS(content, part) EXPECT_NE(refusal(content).find(part), std::string::npos) << refusal(content)

const std::string sound_tensor = dcp_tensor({4, 2}, {{{0, 0}, {2, 2}}, {{2, 0}, {2, 2}}});
const std::string first = dcp_place("w", torch_size({0, 0}), "__0_0.distcp", 0, 100);
const std::string second = dcp_place("w", torch_size({2, 0}), "__1_0.distcp", 7, 100);

TEST(DcpMetadata, OfTorchSaysWhereEveryPieceLies) {
  const auto entries = read(content_of("dcp/model-and-objects/input/.metadata"));
  const DcpEntry weight = named(entries, "model.model.layers.0.self_attn.k_proj.weight");
  EXPECT_EQ(weight.path, (std::vector<std::string>{"model", "model.layers.0.self_attn.k_proj.weight"}));
  EXPECT_EQ(weight.dtype, DType::f32);
  EXPECT_EQ(weight.shape, (Shape{8, 16}));
  ASSERT_EQ(weight.items.size(), 1U);
  EXPECT_EQ(weight.items[0].file, "__0_0.distcp");
  EXPECT_FALSE(named(entries, "optim.param_groups.0.lr").is_tensor);
  EXPECT_EQ(named(entries, "optim.param_groups.0.lr").path, (std::vector<std::string>{"optim", "param_groups", "0", "lr"}));
}

TEST(DcpMetadata, PiecesWithoutElementsNeedNoPlace) {
  const auto entries = read(dcp_metadata({{"w", dcp_tensor({2, 2}, {{{0, 0}, {2, 2}}, {{2, 0}, {0, 2}}})}}, {first}));
  EXPECT_EQ(entries.front().problem, "");
}

TEST(DcpMetadata, PiecesListedAgainCountOnce) {
  const auto entries = read(dcp_metadata({{"w", dcp_tensor({2, 2}, {{{0, 0}, {2, 2}}, {{0, 0}, {2, 2}}})}}, {first}));
  EXPECT_EQ(entries.front().items.size(), 1U);
}

TEST(DcpMetadata, APieceInNoFileIsAProblemOfItsTensor) {
  const auto entries = read(dcp_metadata({{"w", sound_tensor}}, {first}));
  EXPECT_EQ(entries.front().problem, "its piece [2:4, 0:2] is in no file");
}

TEST(DcpMetadata, AnUnknownElementTypeIsAProblemOfItsTensor) {
  std::string tensor = sound_tensor;
  tensor.replace(tensor.find("float32"), 7, "quint8\n", 0, 6);
  EXPECT_NE(read(dcp_metadata({{"w", tensor}}, {first, second})).front().problem.find("torch.quint8"), std::string::npos);
}

TEST(DcpMetadata, APathThatIsNotTheNamesOwnIsLeft) {
  const auto planner = dict({{"w", tuple({text("a"), text("b")})}});
  EXPECT_EQ(read(dcp_metadata({{"w", sound_tensor}}, {first, second}, planner)).front().path, std::vector<std::string>{"w"});
}

TEST(DcpMetadata, FilesOutsideTheFolderAreRefused) {
  for (const char* file : {"../secret.distcp", "/etc/passwd", "a/../../b", "", ".", "a//b"}) {
    EXPECT_SAYS(dcp_metadata({{"w", sound_tensor}}, {dcp_place("w", torch_size({0, 0}), file, 0, 1)}), "not in the checkpoint's folder");
  }
}

TEST(DcpMetadata, ImpossibleNumbersAreRefused) {
  EXPECT_SAYS(dcp_metadata({{"w", sound_tensor}}, {dcp_place("w", torch_size({0, 0}), "f", -1, 1)}), "negative");
  EXPECT_SAYS(dcp_metadata({{"w", sound_tensor}}, {dcp_place("w", torch_size({0, 0}), "f", 1, -1)}), "negative");
  EXPECT_SAYS(dcp_metadata({{"w", dcp_tensor({4, 2}, {{{3, 0}, {2, 2}}})}}, {}), "is not inside [4, 2]");
  EXPECT_SAYS(dcp_metadata({{"w", dcp_tensor({4, 2}, {{{INT64_MAX, 0}, {INT64_MAX, 2}}})}}, {}), "is not inside [4, 2]");
  EXPECT_SAYS(dcp_metadata({{"w", dcp_tensor({INT64_MAX, INT64_MAX}, {})}}, {}), "'w'");
  EXPECT_SAYS(dcp_metadata({{"w", dcp_tensor({4, 2}, {{{0}, {2}}})}}, {}), "is not inside [4, 2]");
}

TEST(DcpMetadata, PlacesOfNothingAndPlacesTwiceAreRefused) {
  EXPECT_SAYS(dcp_metadata({{"w", sound_tensor}}, {first, dcp_place("w", torch_size({1, 0}), "f", 0, 1)}), "none of its chunks");
  EXPECT_SAYS(dcp_metadata({{"w", sound_tensor}}, {first, dcp_place("v", torch_size({0, 0}), "f", 0, 1)}), "does not name");
  EXPECT_SAYS(dcp_metadata({{"w", sound_tensor}}, {first, first}), "placed twice");
}

TEST(DcpMetadata, OtherPicklesAreRefused) {
  EXPECT_SAYS(whole(dict({{"state_dict_metadata", none}})), "is no metadata");
  EXPECT_SAYS(whole(call(global("os", "system"), {text("true")})), "system");
  EXPECT_SAYS(dcp_metadata({{"w", call(global("os", "system"), {text("true")})}}, {}), "system");
  EXPECT_SAYS(dcp_metadata({{"w", sound_tensor}}, {first, second}) + "more", "behind its pickle");
}

TEST(DcpMetadata, CutAnywhereIsRefused) {
  const std::string sound = content_of("dcp/hsdp/input/.metadata");
  ASSERT_EQ(refusal(sound), "");
  for (std::size_t size = 0; size < sound.size(); ++size) EXPECT_NE(refusal(sound.substr(0, size)), "") << size << " bytes";
}

TEST(DcpMetadata, ChangedAnywhereIsReadOrRefused) {
  std::string changed = content_of("dcp/hsdp/input/.metadata");
  constexpr std::array changes{0x01, 0x80, 0xFF, 0x10};
  for (std::size_t at = 0; at < changed.size(); ++at) {
    const char before = changed[at];
    changed[at] = static_cast<char>(before ^ changes[at % changes.size()]);
    static_cast<void>(refusal(changed));
    changed[at] = before;
  }
}

}  // namespace
}  // namespace unshard
