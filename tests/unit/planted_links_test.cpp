// What somebody else may have left where this program writes (a shared /tmp, a scratch folder): links and folders. On the real disk.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "support/command_run.h"
#include "support/small_plan.h"
#include "unshard/error.h"
#include "unshard/publish.h"

namespace unshard {
namespace {

using testing::expect_error;
using testing::small_plan;

TargetFolder check(FileSystem& files, const std::string& target, bool overwrite = false) {
  return check_target_folder(*self_comm(), files, target, {}, overwrite);
}

OpenedPartial open(FileSystem& files, const TargetFolder& target, bool restart = false) {
  return open_partial(*self_comm(), files, target, small_plan(), {"merge a", restart});
}

TEST(PartialFolder, AFolderOfSomebodyElseStaysAsItIs) {
  const auto disk = posix_file_system();
  const testing::TemporaryFolder folder;
  std::filesystem::create_directories(folder / "model.unshard-partial");
  std::ofstream(folder / "model.unshard-partial/notes.txt") << "mine";
  const TargetFolder target = check(*disk, folder / "model");
  for (const bool restart : {false, true})
    expect_error(ErrorCode::usage, {"not made by this program"}, [&] { (void)open(*disk, target, restart); });
  EXPECT_EQ(disk->list(target.partial).size(), 1u);
}

TEST(PlantedLinks, NothingIsWrittenThroughALinkThatSomebodyPlanted) {
  const auto disk = posix_file_system();
  const testing::TemporaryFolder folder;
  std::filesystem::create_directories(folder / "elsewhere");
  std::ofstream(folder / "precious") << "keep";
  const TargetFolder target = check(*disk, folder / "model");
  const auto refused = [&](ErrorCode code, const std::string& named) {
    expect_error(code, {named, "is a link"}, [&] { (void)open(*disk, target); });
    EXPECT_EQ(testing::content(folder / "precious"), "keep");
    EXPECT_TRUE(std::filesystem::is_empty(folder / "elsewhere"));
  };
  std::filesystem::create_directory_symlink(folder / "elsewhere", target.partial);
  refused(ErrorCode::usage, target.partial);
  std::filesystem::remove(target.partial);
  std::filesystem::create_directories(target.partial);
  for (const char* to : {"precious", "nothing"}) {
    std::filesystem::create_symlink(folder / to, target.partial + "/.unshard-lock");
    refused(ErrorCode::io, target.partial + "/.unshard-lock");
    EXPECT_FALSE(std::filesystem::exists(folder / "nothing"));
    std::filesystem::remove(target.partial + "/.unshard-lock");
  }
  (void)open(*disk, target);
  const std::string weights = target.partial + "/" + small_plan().layout.files[0].name + ".part";
  std::filesystem::rename(weights, folder / "moved");
  std::filesystem::create_symlink(folder / "moved", weights);
  expect_error(ErrorCode::io, {weights, "is a link"}, [&] { (void)open(*disk, target); });
}

TEST(PlantedLinks, AnAdaptersFolderIsContinuedButNotThroughALink) {
  const auto disk = posix_file_system();
  const testing::TemporaryFolder folder;
  const TargetFolder target = check(*disk, folder / "model");
  Plan plan = small_plan();
  plan.layout.files[1].name = "lora_adapter/adapter_model.safetensors";
  const auto found = [&](bool restart) { return open_partial(*self_comm(), *disk, target, plan, {"merge a", restart}).found; };
  EXPECT_EQ(found(false), (std::vector<std::uint8_t>{0, 0}));
  EXPECT_EQ(found(false), (std::vector<std::uint8_t>{1, 1}));
  std::filesystem::rename(target.partial + "/lora_adapter", folder / "moved");
  std::filesystem::create_directory_symlink(folder / "moved", target.partial + "/lora_adapter");
  expect_error(ErrorCode::usage, {target.partial + "/lora_adapter", "is a link"}, [&] { (void)found(false); });
  EXPECT_EQ(found(true), (std::vector<std::uint8_t>{0, 0}));
  EXPECT_EQ(disk->list(folder / "moved").size(), 1u);
}

TEST(PlantedLinks, AFolderOfTheModelThatIsALinkIsRefused) {
  const auto disk = posix_file_system();
  const testing::TemporaryFolder folder;
  std::filesystem::create_directories(folder / "model");
  std::filesystem::create_directories(folder / "elsewhere");
  const TargetFolder target = check(*disk, folder / "model", true);
  const std::string link = folder / "model/lora_adapter";
  for (const char* to : {"elsewhere", "nothing"}) {
    std::filesystem::create_symlink(folder / to, link);
    expect_error(ErrorCode::usage, {link, "is a link"}, [&] {
      check_places(*self_comm(), *disk, target, {"config.json", "lora_adapter/default/adapter_model.safetensors"});
    });
    EXPECT_NO_THROW(check_places(*self_comm(), *disk, target, {"config.json"}));
    std::filesystem::remove(link);
  }
}

}  // namespace
}  // namespace unshard
