// Real rank files cut at every byte and with every byte changed: each is read or refused with one error that names the file; no crash, no
// hang, no value from outside the file. Runs under the sanitizers too, so the files are small.
#include <gtest/gtest.h>

#include <array>
#include <filesystem>
#include <fstream>

#include "formats/torch_file.h"
#include "formats/zip_directory.h"
#include "support/memory_file.h"
#include "support/torch_archive.h"
#include "unshard/error.h"

namespace unshard {
namespace {

using namespace unshard::testing;

std::string content_of(const std::string& path) {
  std::ifstream in(std::filesystem::path(UNSHARD_CASES) / path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

/// Bytes of a file that are worth changing: of a long pickle, which repeats one form for each tensor, the beginning and the end.
bool worth_changing(std::size_t at, std::size_t file_bytes) {
  constexpr std::size_t begin_bytes = 5000, end_bytes = 9000;
  return at < begin_bytes || at + end_bytes > file_bytes;
}

/// The archive without the checksums that would catch a changed pickle before it is parsed.
std::string without_checksums(const std::string& archive) {
  MemoryFile file(archive);
  const ZipDirectory directory = ZipDirectory::read(file, 0, file.size(), "archive");
  Records records;
  for (const ZipRecord& record : directory.records()) records.emplace_back(record.name, archive.substr(record.position, record.size_bytes));
  return zip_archive(records);
}

const std::string plain = "hostile/pickle_protocols/protocol4/model_world_size_1_rank_0.pt";
const std::string legacy = "hostile/legacy_non_zip/input/model_world_size_1_rank_0.pt";
const std::string sharded = "fsdp/fsdp1_two_ranks/input/model_world_size_2_rank_1.pt";
const std::string dtensors = "fsdp/tensor_parallel_2x2/input/model_world_size_4_rank_1.pt";

void expect_inside(const StoredTensor& tensor, std::uint64_t file_bytes) {
  EXPECT_LE(tensor.record_position, file_bytes);
  EXPECT_LE(tensor.record_bytes, file_bytes - tensor.record_position);
  std::uint64_t last = 0;
  for (std::size_t i = 0; i < tensor.shape.size(); ++i) {
    if (tensor.shape[i] == 0) return;
    last += (tensor.shape[i] - 1) * tensor.strides[i];
  }
  EXPECT_GE(tensor.position, tensor.record_position);
  EXPECT_LE(tensor.position + (last + 1) * info(tensor.dtype).size_bytes, tensor.record_position + tensor.record_bytes);
}

/// Whether the file is read; everything that is read lies inside it, and an error names it.
bool reads(const std::string& content) {
  MemoryFile file(content);
  try {
    for (const TorchEntry& entry : read_torch_file(file, "rank.pt", 0).entries) {
      if (entry.kind == TorchEntry::Kind::tensor) expect_inside(entry.tensor, content.size());
      if (entry.dtensor) expect_inside(entry.dtensor->local, content.size());
      if (entry.sharded) {
        for (const auto& shard : entry.sharded->shards) expect_inside(shard.tensor, content.size());
      }
    }
    return true;
  } catch (const Error& error) {
    EXPECT_TRUE(std::string(error.what()).starts_with("rank.pt: ")) << error.what();
    EXPECT_TRUE(error.code() == ErrorCode::bad_input || error.code() == ErrorCode::unsupported) << error.what();
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos) << error.what();
    return false;
  }
}

class EveryByte : public ::testing::TestWithParam<std::string> {};

TEST_P(EveryByte, OfACutFileIsMissed) {
  const std::string whole = content_of(GetParam());
  ASSERT_TRUE(reads(whole));
  for (std::size_t size = 0; size < whole.size(); ++size) EXPECT_FALSE(reads(whole.substr(0, size))) << size << " bytes";
}

TEST_P(EveryByte, MayBeWrong) {
  const std::string sound = content_of(GetParam());
  std::string changed = GetParam() == legacy ? sound : without_checksums(sound);
  ASSERT_TRUE(reads(changed));
  constexpr std::array changes{0x01, 0x80, 0xFF, 0x10};
  for (std::size_t at = 0; at < changed.size(); ++at) {
    if (!worth_changing(at, changed.size())) continue;
    const char before = changed[at];
    changed[at] = static_cast<char>(before ^ changes[at % changes.size()]);
    reads(changed);
    changed[at] = before;
  }
}

INSTANTIATE_TEST_SUITE_P(RealFiles, EveryByte, ::testing::Values(plain, legacy, sharded, dtensors), [](const auto& file) {
  return file.param == plain ? "plain" : file.param == legacy ? "legacy" : file.param == sharded ? "ShardedTensor" : "DTensor";
});

TEST(Truncation, AChangedByteOfThePickleIsFoundByItsChecksum) {
  const std::string whole = content_of(dtensors);
  MemoryFile file(whole);
  const ZipDirectory directory = ZipDirectory::read(file, 0, file.size(), "archive");
  const ZipRecord& pickle = *directory.find("data.pkl");
  for (std::uint64_t i = 0; i < pickle.size_bytes; i += 97) {
    std::string changed = whole;
    changed[pickle.position + i] ^= 1;
    EXPECT_FALSE(reads(changed)) << i;
  }
}

}  // namespace
}  // namespace unshard
