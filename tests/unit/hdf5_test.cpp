// Models as HDF5: the same numbers come back, the file is the same for any number of ranks, and a damaged one is an error that names it.
// That others can read it is tested by tests/hdf5/read_by_h5py.py.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "hdf5_library.h"
#include "support/command_run.h"
#include "unshard/merge.h"
#include "unshard/output_format.h"

namespace unshard {
namespace {

using testing::content;
using testing::TemporaryFolder;

const std::string model_case = UNSHARD_CASES "/fsdp/two_ranks_bf16/";

void write(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

MergeOptions merge_into(const std::string& target) {
  MergeOptions options;
  options.input.local_dirs = {model_case + "input"};
  options.target_dir = target;
  options.output_format = "hdf5";
  return options;
}

std::string failure_of(const MergeOptions& options, int ranks = 1) {
  return testing::failure_of(ranks, [&](const Session& session) { (void)merge(session, options); });
}

bool equals_reference(const std::string& folder, int ranks = 2) {
  TestOptions options;
  options.merged_dir = folder;
  options.test_hf_dir = model_case + "expected";
  bool equal = false;
  (void)testing::run_command(ranks, [&](const Session& session) {
    const bool here = test(session, options).equal;
    if (session.comm.rank() == 0) equal = here;
  });
  return equal;
}

TEST(Hdf5, AModelComesBackAndIsTheSameFileForAnyNumberOfRanks) {
  const TemporaryFolder folder;
  for (const int ranks : {1, 2, 3, 4}) ASSERT_EQ(failure_of(merge_into(folder / ("model" + std::to_string(ranks))), ranks), "");
  for (const int ranks : {2, 3, 4})
    EXPECT_EQ(content(folder / ("model" + std::to_string(ranks) + "/model.h5")), content(folder / "model1/model.h5"));
  EXPECT_TRUE(equals_reference(folder / "model1"));
}

TEST(Hdf5, AModelInHdf5CanBeMergedAgainAsSafetensors) {
  const TemporaryFolder folder;
  ASSERT_EQ(failure_of(merge_into(folder / "hdf5")), "");
  MergeOptions back = merge_into(folder / "back");
  back.input.local_dirs = {folder / "hdf5"};
  back.output_format = "safetensors";
  ASSERT_EQ(failure_of(back, 2), "");
  EXPECT_EQ(content(folder / "back/model.safetensors"), content(model_case + "expected/model.safetensors"));
}

TEST(Hdf5, EveryElementTypeAndShapeIsListedAsItWasMade) {
  const TemporaryFolder folder;
  std::vector<Hdf5Dataset> datasets{{"scalar", DType::f32, {}, 0}, {"empty", DType::bf16, {0, 7}, 0}};
  for (const DTypeInfo& type : dtype_table()) datasets.push_back({std::string("a.") + std::string(type.name), type.dtype, {3, 5}, 0});
  const Hdf5Image image = hdf5().make_image(datasets, {});
  std::string file = image.header;
  file.resize(image.size_bytes, 'x');
  write(folder / "model.h5", file);
  std::uint64_t payload = 0;
  std::vector<Hdf5Dataset> listed = hdf5().list_datasets(folder / "model.h5");
  ASSERT_EQ(listed.size(), datasets.size());
  for (std::size_t i = 0; i < datasets.size(); ++i) {
    const auto found = std::find_if(listed.begin(), listed.end(), [&](const Hdf5Dataset& set) { return set.name == datasets[i].name; });
    ASSERT_NE(found, listed.end()) << datasets[i].name;
    EXPECT_EQ(found->dtype, datasets[i].dtype) << datasets[i].name;
    EXPECT_EQ(found->shape, datasets[i].shape) << datasets[i].name;
    if (volume(found->shape) > 0) {
      EXPECT_EQ(found->position, image.positions[i]) << datasets[i].name;
    }
    payload += volume(found->shape) * info(found->dtype).size_bytes;
  }
  EXPECT_EQ(image.header.size() + payload, image.size_bytes);
}

TEST(Hdf5, ThousandsOfTensorsAndALongConfigLieBehindTheHeader) {
  std::vector<Hdf5Dataset> datasets;
  for (int i = 0; i < 3000; ++i)
    datasets.push_back({"model.layers." + std::to_string(i) + "." + std::string(100, 'n'), DType::bf16, {2, 3}, 0});
  const std::vector<std::pair<std::string, std::string>> attributes{{"config", std::string(300000, 'c')}};
  const Hdf5Image image = hdf5().make_image(datasets, attributes);
  EXPECT_EQ(image.positions.front(), image.header.size());
  EXPECT_EQ(image.header.size() + 3000 * 12, image.size_bytes);
}

TEST(Hdf5, NamesThatHdf5TakesForPathsAreRefused) {
  for (const std::string name : {"a/b", ".", "", "\xff"}) {
    Targets targets;
    targets.targets.push_back({name, DType::f32, {2}, {}});
    try {
      (void)output_named("hdf5").lay_out(targets, {});
      ADD_FAILURE() << name;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::unsupported) << error.what();
    }
  }
}

TEST(Hdf5, ADamagedFileIsAnErrorThatNamesItAndNeverACrash) {
  const TemporaryFolder folder;
  ASSERT_EQ(failure_of(merge_into(folder / "model")), "");
  const std::string path = folder / "model/model.h5";
  const std::string whole = content(path);
  const auto listed = [&](const std::string& bytes) {
    write(path, bytes);
    return testing::failure_of(1, [&](const Session& session) { (void)inspect(session, path, true); });
  };
  EXPECT_EQ(listed(whole), "");
  for (const std::size_t length : {std::size_t{0}, std::size_t{8}, std::size_t{100}, std::size_t{4000}, whole.size() - 1}) {
    const std::string failure = listed(whole.substr(0, length));
    EXPECT_NE(failure.find("model.h5"), std::string::npos) << length << ": " << failure;
  }
  for (std::size_t at = 8; at < 6000; at += 97) {
    std::string bytes = whole;
    for (std::size_t i = 0; i < 8; ++i) bytes[at + i] = static_cast<char>(0xff);
    const std::string failure = listed(bytes);  // some bytes mean nothing
    if (!failure.empty()) {
      EXPECT_NE(failure.find("model.h5"), std::string::npos) << at << ": " << failure;
    }
  }
}

}  // namespace
}  // namespace unshard
