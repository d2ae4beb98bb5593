// The rules of the target folder, and what open_partial does with a partial folder that is already there.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>

#include "command_identity.h"
#include "support/memory_file_system.h"
#include "support/small_plan.h"
#include "unshard/error.h"
#include "unshard/in_process_comm.h"
#include "unshard/publish.h"

namespace unshard {
namespace {

using test::Call;
using test::MemoryFileSystem;
using testing::expect_error;
using testing::small_plan;

TargetFolder check(FileSystem& files, const std::string& target, const std::vector<std::string>& sources = {}, bool overwrite = false,
                   bool writes = true) {
  return check_target_folder(*self_comm(), files, target, sources, overwrite, writes);
}

TEST(CommandIdentity, SaysInWhatCommandsDiffer) {
  const std::string one(64, 'a'), read = std::string(16, 'b') + std::string(48, 'a');
  const std::string held = std::string(16, 'a') + std::string(32, 'b') + std::string(16, 'a');
  EXPECT_EQ(difference_of_commands(read, one), "what is read differs");
  EXPECT_EQ(difference_of_commands(held, one), "what the files hold (names, types, sizes), what tensors are made from differ");
  EXPECT_EQ(difference_of_commands("merge a", one), "it is of another version of this program");
}

OpenedPartial open(FileSystem& files, const TargetFolder& target, const std::string& fingerprint, bool stage_2 = false,
                   bool restart = false) {
  return open_partial(*self_comm(), files, target, small_plan(), {fingerprint, restart, stage_2});
}

TEST(TargetFolder, ANewTargetIsFineAndNothingIsLeftBehind) {
  MemoryFileSystem files;
  files.put("/runs/x", "x");
  const TargetFolder target = check(files, "/runs/model/");
  EXPECT_EQ(target.path, "/runs/model");
  EXPECT_EQ(target.partial, "/runs/model.unshard-partial");
  EXPECT_FALSE(target.existed);
  EXPECT_EQ(files.tree("/"), std::vector<std::string>{"runs/x"});
}

TEST(TargetFolder, AFolderInThePlaceOfAFileIsFoundBeforeAnyWork) {
  MemoryFileSystem files;
  files.make_folder("/runs/model/model.safetensors");
  files.put("/runs/model/additional_chat_templates", "x");
  const TargetFolder target = check(files, "/runs/model", {}, true);
  const auto places = [&](const std::vector<std::string>& names) { check_places(*self_comm(), files, target, names); };
  expect_error(ErrorCode::usage, {"/runs/model/model.safetensors", "is a folder"}, [&] { places({"config.json", "model.safetensors"}); });
  expect_error(ErrorCode::usage, {"/runs/model/additional_chat_templates", "is a file"},
               [&] { places({"additional_chat_templates/a.jinja"}); });
  places({"config.json", "tokenizer.json"});
}

TEST(TargetFolder, AnEmptyFolderIsFineAndAFullOneNeedsOverwrite) {
  MemoryFileSystem files;
  files.make_folder("/runs/model");
  EXPECT_TRUE(check(files, "/runs/model").existed);
  files.put("/runs/model/notes.txt", "x");
  expect_error(ErrorCode::usage, {"/runs/model", "--overwrite"}, [&] { (void)check(files, "/runs/model"); });
  EXPECT_TRUE(check(files, "/runs/model", {}, true).existed);
}

TEST(TargetFolder, AFileOrADeadLinkOrAFolderBelowAFileIsRefused) {
  MemoryFileSystem files;
  files.put("/runs/file", "x");
  files.link("/runs/dead", "/nowhere");
  expect_error(ErrorCode::usage, {"/runs/file", "is a file"}, [&] { (void)check(files, "/runs/file", {}, true); });
  expect_error(ErrorCode::usage, {"/runs/file/a/model", "/runs/file is a file"}, [&] { (void)check(files, "/runs/file/a/model"); });
  expect_error(ErrorCode::usage, {"--target-dir"}, [&] { (void)check(files, ""); });
  expect_error(ErrorCode::usage, {"root"}, [&] { (void)check(files, "/", {}, true); });
}

TEST(TargetFolder, ASourceInsideTheTargetOrAroundItIsRefused) {
  MemoryFileSystem files;
  files.put("/runs/step/actor/shard", "x");
  for (const char* target : {"/runs/step/actor", "/runs/step/actor/merged", "/runs/step/actor/../actor/a/b", "/runs/step", "/runs"}) {
    expect_error(ErrorCode::usage, {"source"}, [&] { (void)check(files, target, {"/runs/step/actor/"}, true); });
  }
  EXPECT_NO_THROW((void)check(files, "/runs/step/actor_merged", {"/runs/step/actor"}));
}

TEST(TargetFolder, LinksAreResolvedBeforeSourceAndTargetAreCompared) {
  const std::filesystem::path root = std::filesystem::temp_directory_path() / ("unshard-target-" + std::to_string(::getpid()));
  std::filesystem::create_directories(root / "real" / "actor");
  std::filesystem::create_directory_symlink(root / "real", root / "alias");
  std::filesystem::create_symlink("nowhere", root / "dead");
  const auto files = posix_file_system();
  const std::string source = (root / "real" / "actor").string();
  for (const char* target : {"alias/actor", "alias/actor/merged", "alias"}) {
    expect_error(ErrorCode::usage, {"source"}, [&] { (void)check(*files, (root / target).string(), {source}, true); });
  }
  expect_error(ErrorCode::usage, {"link to nothing"}, [&] { (void)check(*files, (root / "dead").string(), {source}); });
  const TargetFolder target = check(*files, (root / "alias" / "merged").string(), {source});
  EXPECT_EQ(target.path, std::filesystem::canonical(root).string() + "/real/merged");
  EXPECT_TRUE(std::filesystem::is_empty(source));
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(root / "real"), {}), 1);
  std::filesystem::remove_all(root);
}

TEST(TargetFolder, AFileThatIsALinkIntoTheTargetIsRefusedWithAnyRankThatReadsIt) {
  MemoryFileSystem files;
  files.put("/runs/old/a.pt", "x");
  files.put("/runs/actor/own.pt", "x");
  files.put("/runs/other/b.pt", "x");
  files.link("/runs/actor/into.pt", "/runs/old/a.pt");
  files.link("/runs/actor/elsewhere.pt", "/runs/other/b.pt");
  files.link("/runs/alias", "/runs/actor");
  for (const int ranks : {1, 2, 3, 4}) {
    run_ranks(ranks, {}, [&](Comm& comm) {
      const TargetFolder target = check_target_folder(comm, files, "/runs/old", {"/runs/actor"}, true);
      check_no_link_into(comm, files, target, {"/runs/actor/own.pt", "/runs/alias/own.pt", "/runs/actor/elsewhere.pt"});
      const bool is_last = comm.rank() + 1 == comm.size();
      const std::vector<std::string> paths = is_last ? std::vector<std::string>{"/runs/alias/into.pt"} : std::vector<std::string>{};
      expect_error(ErrorCode::usage, {"/runs/alias/into.pt", "/runs/old/a.pt", "inside the target"},
                   [&] { check_no_link_into(comm, files, target, paths); });
    });
  }
}

TEST(TargetFolder, AMountPointIsRefusedBecauseThePartialFolderWouldLieElsewhere) {
  MemoryFileSystem files;
  files.make_folder("/mnt/disk");
  files.set_device("/mnt/disk", 7);
  expect_error(ErrorCode::usage, {"/mnt/disk", "mount point"}, [&] { (void)check(files, "/mnt/disk"); });
  EXPECT_NO_THROW((void)check(files, "/mnt/disk/model"));
}

TEST(TargetFolder, AFolderThatCannotBeWrittenIsFoundBeforeAnyWorkButNotByADryRun) {
  MemoryFileSystem files;
  files.make_folder("/readonly");
  files.fail(Call::open_for_writing, "/readonly");
  expect_error(ErrorCode::io, {"/readonly"}, [&] { (void)check(files, "/readonly/model"); });
  EXPECT_NO_THROW((void)check(files, "/readonly/model", {}, false, false));
}

TEST(TargetFolder, AnExistingTargetThatCannotBeWrittenIsFoundBeforeAnyWork) {
  MemoryFileSystem files;
  files.make_folder("/runs/model");
  EXPECT_TRUE(check(files, "/runs/model").existed);
  EXPECT_TRUE(files.list("/runs/model").empty());
  files.fail(Call::open_for_writing, "/runs/model/");
  expect_error(ErrorCode::io, {"/runs/model"}, [&] { (void)check(files, "/runs/model"); });
  EXPECT_NO_THROW((void)check(files, "/runs/model", {}, false, false));
}

TEST(TargetFolder, AnotherDiskOnAnotherNodeIsFoundAndItsHostNamed) {
  MemoryFileSystem files;
  files.make_folder("/scratch");
  const auto second = files.other_node({"/scratch"});
  second->make_folder("/scratch");
  std::string host;
  expect_error(ErrorCode::io, {"/scratch", "not seen"}, [&] {
    run_ranks(3, {.seed = 1, .ranks_per_node = 2}, [&](Comm& comm) {
      if (comm.rank() == 0) host = comm.host_of(2);
      (void)check_target_folder(comm, comm.rank() < 2 ? static_cast<FileSystem&>(files) : *second, "/scratch/model", {}, false);
    });
  });
  EXPECT_TRUE(files.tree("/scratch").empty());
  expect_error(ErrorCode::io, {host}, [&] {  // without a parent to try, the partial folder itself is what is looked for
    run_ranks(3, {.seed = 1, .ranks_per_node = 2}, [&](Comm& comm) {
      FileSystem& mine = comm.rank() < 2 ? static_cast<FileSystem&>(files) : *second;
      const TargetFolder target = check_target_folder(comm, mine, "/scratch/new/model", {}, false);
      (void)open_partial(comm, mine, target, small_plan(), {"merge"});
    });
  });
  EXPECT_TRUE(files.tree("/scratch").empty());
}

TEST(TargetFolder, ASourceThatOnlyAnotherNodeHasIsComparedThere) {
  MemoryFileSystem files;
  files.put("/shared/x", "x");
  const auto second = files.other_node({"/local"});
  second->put("/local/actor/shard", "x");
  second->link("/local/link", "/shared");
  expect_error(ErrorCode::usage, {"source"}, [&] {
    run_ranks(2, {.seed = 3, .ranks_per_node = 1}, [&](Comm& comm) {
      (void)check_target_folder(comm, comm.rank() == 0 ? static_cast<FileSystem&>(files) : *second, "/local/actor/model", {"/local/actor"},
                                false);
    });
  });
}

TEST(OpenPartial, MakesFilesWithTheirSizesAndHeadersUnderNamesThatNoLoaderTakes) {
  MemoryFileSystem files;
  const TargetFolder target = check(files, "/a/b/model");
  EXPECT_TRUE(open(files, target, "merge --local-dir x").notes.empty());
  EXPECT_EQ(files.tree("/"), (std::vector<std::string>{"a/b/model.unshard-partial/.unshard-command",
                                                       "a/b/model.unshard-partial/model-00001-of-00002.safetensors.part",
                                                       "a/b/model.unshard-partial/model-00002-of-00002.safetensors.part"}));
  const std::string first = files.content("/a/b/model.unshard-partial/model-00001-of-00002.safetensors.part");
  EXPECT_EQ(first.size(), 100u);
  EXPECT_EQ(first.substr(0, 8), "header 1");
}

TEST(OpenPartial, TheSameCommandFindsItsFilesAgainAndAnotherIsRefusedByName) {
  MemoryFileSystem files;
  const TargetFolder target = check(files, "/runs/model");
  EXPECT_EQ(open(files, target, "merge a").found, (std::vector<std::uint8_t>{0, 0}));
  const std::string first = target.partial + "/model-00001-of-00002.safetensors.part";
  files.put(first, "header 1" + std::string(92, 'w'));
  files.put(target.partial + "/left-over", "x");
  files.put(target.partial + "/.unshard-journal-1-0", "x");
  expect_error(ErrorCode::usage, {target.partial, "another command", "--restart"}, [&] { (void)open(files, target, "merge b"); });
  EXPECT_TRUE(files.exists(target.partial + "/left-over"));
  EXPECT_EQ(open(files, target, "merge a").found, (std::vector<std::uint8_t>{1, 1}));
  EXPECT_FALSE(files.exists(target.partial + "/left-over"));
  EXPECT_TRUE(files.exists(target.partial + "/.unshard-journal-1-0"));
  EXPECT_EQ(files.content(first).back(), 'w');
}

TEST(OpenPartial, AFileWithoutItsSizeOrHeaderIsMadeAgain) {
  MemoryFileSystem files;
  const TargetFolder target = check(files, "/runs/model");
  (void)open(files, target, "merge a");
  files.put(target.partial + "/model-00001-of-00002.safetensors.part", "header 1" + std::string(91, 'w'));
  files.put(target.partial + "/model-00002-of-00002.safetensors.part", "header 33" + std::string(51, 'w'));
  EXPECT_EQ(open(files, target, "merge a").found, (std::vector<std::uint8_t>{0, 0}));
  EXPECT_EQ(files.content(target.partial + "/model-00001-of-00002.safetensors.part").find('w'), std::string::npos);
}

TEST(OpenPartial, RestartTakesNothingOverWhateverCommandItWas) {
  MemoryFileSystem files;
  const TargetFolder target = check(files, "/runs/model");
  (void)open(files, target, "merge a");
  files.put(target.partial + "/.unshard-journal-1-0", "x");
  EXPECT_EQ(open(files, target, "merge b", false, true).found, (std::vector<std::uint8_t>{0, 0}));
  EXPECT_FALSE(files.exists(target.partial + "/.unshard-journal-1-0"));
  expect_error(ErrorCode::usage, {"another command"}, [&] { (void)open(files, target, "merge a"); });
  MemoryFileSystem others;
  others.put(target.partial + "/thesis.tex", "x");
  expect_error(ErrorCode::usage, {target.partial}, [&] { (void)open(others, target, "merge a", false, true); });
}

TEST(OpenPartial, WhatIsNotOursIsNeverRemoved) {
  MemoryFileSystem files;
  const TargetFolder target = check(files, "/runs/model");
  files.put(target.partial + "/thesis.tex", "x");
  expect_error(ErrorCode::usage, {target.partial}, [&] { (void)open(files, target, "merge a"); });
  EXPECT_TRUE(files.exists(target.partial + "/thesis.tex"));
  MemoryFileSystem others;
  others.put("/runs/model.unshard-partial", "a file");
  expect_error(ErrorCode::usage, {"is a file"}, [&] { (void)open(others, check(others, "/runs/model"), "merge a"); });
}

TEST(OpenPartial, AnEmptyPartialFolderOfAKilledRunIsNoObstacle) {
  MemoryFileSystem files;
  const TargetFolder target = check(files, "/runs/model");
  files.make_folder(target.partial);
  EXPECT_NO_THROW((void)open(files, target, "merge a"));
}

TEST(OpenPartial, TooLittleSpaceIsFoundBeforeAnythingIsMade) {
  MemoryFileSystem files;
  files.make_folder("/runs");
  files.set_capacity(150);
  const TargetFolder target = check(files, "/runs/a/model");
  expect_error(ErrorCode::no_space, {"160", "150", "/runs/a/model"}, [&] { (void)open(files, target, "merge a"); });
  EXPECT_FALSE(files.exists("/runs/a"));
}

TEST(OpenPartial, SpaceThatRunsOutWhileReservingLeavesNothing) {
  MemoryFileSystem files;
  files.make_folder("/runs");
  files.fail(Call::reserve, "00002-of", 0, ErrorCode::no_space);
  const TargetFolder target = check(files, "/runs/model");
  expect_error(ErrorCode::no_space, {"00002-of-00002"}, [&] { (void)open(files, target, "merge a"); });
  EXPECT_TRUE(files.tree("/runs").empty());
}

TEST(OpenPartial, AFileSystemThatCannotReserveIsNoted) {
  MemoryFileSystem files;
  files.set_can_reserve(false);
  run_ranks(3, {.seed = 5}, [&](Comm& comm) {
    const TargetFolder target = check_target_folder(comm, files, "/runs/model", {}, false);
    const auto notes = open_partial(comm, files, target, small_plan(), {"merge a"}).notes;
    EXPECT_EQ(notes.size(), 1u);
  });
}

TEST(OpenPartial, StageTwoNeedsWhatStageOneLeft) {
  MemoryFileSystem files;
  const TargetFolder target = check(files, "/runs/model");
  expect_error(ErrorCode::usage, {"--stage 1"}, [&] { (void)open(files, target, "merge a", true); });
  (void)open(files, target, "merge a");
  const std::string path = target.partial + "/model-00002-of-00002.safetensors.part";
  files.put(path, "header 22" + std::string(51, 's'));  // as if stage 1 had written there
  expect_error(ErrorCode::usage, {target.partial, "did not end"}, [&] { (void)open(files, target, "merge a", true); });
  end_stage_1(*self_comm(), files, target, small_plan());
  (void)open(files, target, "merge a", true);
  EXPECT_EQ(files.content(path).back(), 's');
  expect_error(ErrorCode::usage, {"another command", "stage 1"}, [&] { (void)open(files, target, "merge b", true); });
  files.put(path, "header 22" + std::string(50, 's'));
  expect_error(ErrorCode::usage, {path, "59", "60"}, [&] { (void)open(files, target, "merge a", true); });
  files.put(path, "header 23" + std::string(51, 's'));
  expect_error(ErrorCode::usage, {path}, [&] { (void)open(files, target, "merge a", true); });
  files.remove_file(path);
  expect_error(ErrorCode::usage, {path, "missing"}, [&] { (void)open(files, target, "merge a", true); });
}

}  // namespace
}  // namespace unshard
