// Publishing: the target is complete or not loadable at every moment, and a killed run can be repeated.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>

#include "support/memory_file_system.h"
#include "unshard/agree.h"
#include "unshard/error.h"
#include "unshard/in_process_comm.h"
#include "unshard/publish.h"

namespace unshard {
namespace {

using test::Call;
using test::MemoryFileSystem;

constexpr const char* first_weights = "model-00001-of-00002.safetensors";
constexpr const char* second_weights = "model-00002-of-00002.safetensors";

Plan small_plan(int ranks) {
  Plan plan;
  plan.ranks = ranks;
  plan.layout.files = {{first_weights, "header 1", 10}, {second_weights, "header 2", 12}};
  plan.runs.resize(static_cast<std::size_t>(ranks));
  plan.runs.front().push_back({0, 0, 8, 10});
  plan.runs.back().push_back({1, 0, 8, 12});
  return plan;
}

const std::vector<SmallFile> last_files{{"config.json", "new config"}, {"model.safetensors.index.json", "new index"}};

/// A whole run: checked, opened, "moved" (the payload is written), published.
void run(Comm& comm, FileSystem& files, bool overwrite, const std::string& root = "", const std::function<void()>& before_publishing = {},
         const std::vector<SmallFile>& last = last_files) {
  const Plan plan = small_plan(comm.size());
  const std::vector<Asset> assets = list_assets(files, root + "/hf");
  const TargetFolder target = check_target_folder(comm, files, root + "/out/model", {root + "/hf"}, overwrite);
  if (open_partial(comm, files, target, plan, {"merge x", false, false, beside_identity(assets, last)}).is_published) return;
  for (const Run& part : plan.runs[static_cast<std::size_t>(comm.rank())]) {
    const std::string payload(part.end - part.begin, 'w');
    (void)attempt([&] {
      files.open_for_writing(target.partial + "/" + partial_name(plan.layout.files[part.file]), false)
          ->write_at(part.begin, std::as_bytes(std::span(payload)));
    });
  }
  if (before_publishing) before_publishing();
  publish(comm, files, target, plan, assets, comm.size() - 1, last);
}

void put_config_folder(MemoryFileSystem& files) {
  files.put("/hf/config.json", "old");
  files.put("/hf/tokenizer.json", std::string(1200000, 't'));
  files.put("/hf/additional_chat_templates/tool.jinja", "template");
  files.make_folder("/out");
}

const std::vector<std::string> published{"additional_chat_templates/tool.jinja", "config.json",   first_weights, second_weights,
                                         "model.safetensors.index.json",         "tokenizer.json"};

void expect_published(const MemoryFileSystem& files) {
  EXPECT_EQ(files.tree("/out/model"), published);
  EXPECT_FALSE(files.exists("/out/model.unshard-partial"));
  EXPECT_EQ(files.content(std::string("/out/model/") + first_weights), "header 1ww");
  EXPECT_EQ(files.content(std::string("/out/model/") + second_weights), "header 2wwww");
  EXPECT_EQ(files.content("/out/model/config.json"), "new config");
  EXPECT_EQ(files.content("/out/model/tokenizer.json").size(), 1200000);
}

void put_old_model(MemoryFileSystem& files) {
  for (const char* name : {"config.json", "model.safetensors", "model-00001-of-00003.safetensors", "model.safetensors.index.json",
                           "generation_config.json", "vocab.txt", "notes.txt", "logs/config.json", "additional_chat_templates/old.jinja"}) {
    files.put(std::string("/out/model/") + name, "old");
  }
}

/// What a loader could take: the old model, the new one, or nothing.
bool loadable_is_complete(const MemoryFileSystem& files, const std::string& folder, bool had_old) {
  if (!files.exists(folder + "/config.json")) return true;
  const bool is_new = files.content(folder + "/config.json") == "new config";
  if (!is_new)
    return had_old && files.content(folder + "/model.safetensors") == "old" &&
           files.content(folder + "/model.safetensors.index.json") == "old";
  return files.content(folder + "/" + first_weights) == "header 1ww" && files.content(folder + "/" + second_weights) == "header 2wwww" &&
         files.content(folder + "/model.safetensors.index.json") == "new index" &&
         files.content(folder + "/tokenizer.json").size() == 1200000 && !files.exists(folder + "/model.safetensors") &&
         !files.exists(folder + "/generation_config.json");
}

TEST(Publish, ANewTargetAppearsWithAllItsFilesForAnyNumberOfRanks) {
  for (const int ranks : {1, 2, 3, 4}) {
    for (const int per_node : {0, 1}) {
      MemoryFileSystem files;
      put_config_folder(files);
      run_ranks(ranks, {.seed = static_cast<std::uint64_t>(ranks), .ranks_per_node = per_node},
                [&](Comm& comm) { run(comm, files, false); });
      expect_published(files);
    }
  }
}

TEST(Publish, AnExistingEmptyFolderIsFilled) {
  MemoryFileSystem files;
  put_config_folder(files);
  files.make_folder("/out/model");
  run(*self_comm(), files, false);
  expect_published(files);
}

TEST(Publish, OverwriteReplacesOurKindsAndLeavesOtherFilesAlone) {
  MemoryFileSystem files;
  put_config_folder(files);
  put_old_model(files);
  run(*self_comm(), files, true);
  for (const char* name : {"notes.txt", "logs/config.json"}) {
    EXPECT_EQ(files.content(std::string("/out/model/") + name), "old") << name;
    files.remove_file(std::string("/out/model/") + name);
  }
  expect_published(files);
}

TEST(Publish, TheRealDiskIsFilledAndFilledAgain) {
  const std::filesystem::path root = std::filesystem::temp_directory_path() / ("unshard-publish-" + std::to_string(::getpid()));
  std::filesystem::create_directories(root / "hf" / "additional_chat_templates");
  std::filesystem::create_directories(root / "out");
  std::ofstream(root / "hf" / "tokenizer.json") << std::string(1'200'000, 't');
  std::ofstream(root / "hf" / "additional_chat_templates" / "tool.jinja") << "template";
  const auto files = posix_file_system();
  run_ranks(2, {.seed = 4}, [&](Comm& comm) { run(comm, *files, false, root.string()); });
  std::ofstream(root / "out" / "model" / "notes.txt") << "mine";
  std::ofstream(root / "out" / "model" / "pytorch_model.bin") << "old";
  run_ranks(2, {.seed = 5}, [&](Comm& comm) { run(comm, *files, true, root.string()); });
  std::vector<std::string> found;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(root / "out")) {
    if (entry.is_regular_file()) found.push_back(entry.path().lexically_relative(root / "out" / "model").string());
  }
  std::sort(found.begin(), found.end());
  std::vector<std::string> expected = published;
  expected.insert(std::lower_bound(expected.begin(), expected.end(), "notes.txt"), "notes.txt");
  EXPECT_EQ(found, expected);
  EXPECT_EQ(std::filesystem::file_size(root / "out" / "model" / "tokenizer.json"), 1'200'000u);
  std::filesystem::remove_all(root);
}

TEST(Publish, ALinkToAFolderInTheOldTargetIsNotEntered) {
  MemoryFileSystem files;
  put_config_folder(files);
  files.put("/out/model/config.json", "old");
  files.put("/precious/keep.jinja", "keep");
  files.link("/out/model/additional_chat_templates", "/precious");
  files.remove_folder("/hf/additional_chat_templates");
  run(*self_comm(), files, true);
  EXPECT_EQ(files.content("/precious/keep.jinja"), "keep");
}

// Kills the run at every call that changes the disk, then repeats it.
void kill_everywhere(const std::function<void(MemoryFileSystem&)>& prepare, bool overwrite, bool had_old) {
  std::uint64_t changes = 0;
  {
    MemoryFileSystem files;
    prepare(files);
    const std::uint64_t before = files.changes();
    run(*self_comm(), files, overwrite);
    changes = files.changes() - before;
  }
  ASSERT_GT(changes, 20u);
  for (std::uint64_t kill = 0; kill < changes; ++kill) {
    SCOPED_TRACE(kill);
    MemoryFileSystem files;
    prepare(files);
    files.fail_changes_after(kill);
    EXPECT_THROW(run(*self_comm(), files, overwrite), Error);
    files.heal();
    EXPECT_TRUE(loadable_is_complete(files, "/out/model", had_old));
    EXPECT_TRUE(loadable_is_complete(files, "/out/model.unshard-partial", false));
    const bool over = files.content("/out/model/config.json") == "new config" && !files.exists("/out/model.unshard-partial") &&
                      !files.exists("/out/model/.unshard-command");
    if (!over) {  // otherwise the target is complete, and only its folder's last sync was missed
      ASSERT_NO_THROW(run(*self_comm(), files, overwrite)) << ::testing::PrintToString(files.tree("/out"));
    }
    EXPECT_EQ(files.content("/out/model/config.json"), "new config");
    EXPECT_EQ(files.content(std::string("/out/model/") + second_weights), "header 2wwww");
    EXPECT_FALSE(files.exists("/out/model/.unshard-command"));
    EXPECT_FALSE(files.exists("/out/model.unshard-partial"));
  }
}

TEST(Publish, ARunKilledAnywhereLeavesNothingToLoadAndCanBeRepeated) {
  kill_everywhere(put_config_folder, false, false);
}

TEST(Publish, ARunIntoAnEmptyFolderKilledAnywhereCanBeRepeated) {
  kill_everywhere(
      [](MemoryFileSystem& files) {
        put_config_folder(files);
        files.make_folder("/out/model");
      },
      false, false);
}

TEST(Publish, ARunOverAnOldModelKilledAnywhereLeavesTheOldOneOrNoneAndCanBeRepeated) {
  kill_everywhere(
      [](MemoryFileSystem& files) {
        put_config_folder(files);
        put_old_model(files);
      },
      true, true);
}

TEST(Publish, ARunKilledAnywhereAndRepeatedWithOtherSmallFilesPublishesThose) {
  const std::vector<SmallFile> newer{{"config.json", "newer config"}, last_files.back()};
  for (const bool has_other_tokenizer : {false, true}) {
    std::uint64_t killed = 0;
    for (bool goes_on = true; goes_on; ++killed) {
      SCOPED_TRACE(killed);
      MemoryFileSystem files;
      put_config_folder(files);
      files.fail_changes_after(killed);
      const auto failure = attempt([&] { run(*self_comm(), files, false); });
      goes_on = failure.has_value();
      files.heal();
      const bool is_published = files.exists("/out/model") && !files.exists("/out/model/.unshard-command");
      if (is_published) continue;  // not ours to replace without --overwrite
      if (has_other_tokenizer) files.put("/hf/tokenizer.json", "other tokenizer");
      run(*self_comm(), files, false, "", {}, has_other_tokenizer ? last_files : newer);
      EXPECT_EQ(files.content("/out/model/config.json"), has_other_tokenizer ? "new config" : "newer config");
      EXPECT_EQ(files.content("/out/model/tokenizer.json").size(), has_other_tokenizer ? 15u : 1200000u);
      EXPECT_EQ(files.content(std::string("/out/model/") + second_weights), "header 2wwww");
      EXPECT_EQ(files.tree("/out/model"), published);
    }
    EXPECT_GT(killed, 20u);
  }
}

TEST(Publish, AnotherCommandDoesNotTakeOverATargetThatIsBeingPublished) {
  MemoryFileSystem files;
  put_config_folder(files);
  files.put("/out/model/.unshard-command", "merge other\n");
  try {
    run(*self_comm(), files, false);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::usage);
    EXPECT_NE(std::string(error.what()).find("belongs to another command"), std::string::npos) << error.what();
  }
}

TEST(Publish, WhatHasComeIntoTheTargetMeanwhileIsNotReplacedWithoutOverwrite) {
  for (const bool overwrite : {false, true}) {
    MemoryFileSystem files;
    put_config_folder(files);
    files.make_folder("/out/model");
    const auto error = attempt([&] { run(*self_comm(), files, overwrite, "", [&] { put_old_model(files); }); });
    EXPECT_EQ(error.has_value(), !overwrite);
    EXPECT_EQ(files.content("/out/model/config.json"), overwrite ? "new config" : "old");
    if (error) {
      EXPECT_EQ(error->code(), ErrorCode::usage);
      EXPECT_NE(std::string(error->what()).find("--overwrite"), std::string::npos) << error->what();
    }
  }
}

TEST(Publish, AFailedSyncOnAnyRankStopsPublishing) {
  for (const char* weights : {first_weights, second_weights}) {
    MemoryFileSystem files;
    put_config_folder(files);
    files.fail(Call::sync, weights);
    try {
      run_ranks(2, {.seed = 9}, [&](Comm& comm) { run(comm, files, false); });
      FAIL();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::io);
      EXPECT_NE(std::string(error.what()).find(weights), std::string::npos) << error.what();
    }
    EXPECT_FALSE(files.exists("/out/model"));
  }
}

TEST(Publish, AFileThatSomethingElseHasChangedIsNotPublished) {
  const std::string path = std::string("/out/model.unshard-partial/") + second_weights + ".part";
  for (const char* content : {"header 2wwww+", "heXder 2wwww", "header 2www"}) {
    MemoryFileSystem files;
    put_config_folder(files);
    const auto error = attempt([&] { run(*self_comm(), files, false, "", [&] { files.put(path, content); }); });
    ASSERT_TRUE(error) << content;
    EXPECT_EQ(error->code(), ErrorCode::verification) << error->what();
    EXPECT_NE(std::string(error->what()).find(path), std::string::npos) << error->what();
    EXPECT_FALSE(files.exists("/out/model"));
  }
}

TEST(Publish, ATargetThatHasAppearedMeanwhileIsNamedWithWhatToDo) {
  MemoryFileSystem files;
  put_config_folder(files);
  const auto error = attempt([&] { run(*self_comm(), files, false, "", [&] { files.put("/out/model/x", "other"); }); });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code(), ErrorCode::usage) << error->what();
  EXPECT_NE(std::string(error->what()).find("remove it"), std::string::npos) << error->what();
  EXPECT_EQ(files.content("/out/model/x"), "other");
}

/// What a killed run wrote is in the cache of a node that may write nothing now.
TEST(Publish, AFileWithRangesOfAnEarlierRunIsSyncedOnEveryNodeThatWrites) {
  for (const bool is_continued : {false, true}) {
    for (const bool other_is_blind : {false, true}) {
      MemoryFileSystem files;
      put_config_folder(files);
      files.fail(Call::sync, second_weights, 1);  // the second node that does it
      const auto error = attempt([&] {
        run_ranks(2, {.seed = 9, .ranks_per_node = 1}, [&](Comm& comm) {
          Plan plan = small_plan(2);
          plan.runs = {{{0, 0, 8, 10}}, {}};
          if (is_continued) plan.done = {{1, 8, 12}};
          TargetFolder target = check_target_folder(comm, files, "/out/model", {}, false);
          if (other_is_blind) target.blind = {1};
          (void)open_partial(comm, files, target, plan, {"merge x"});
          publish(comm, files, target, plan, {}, 0, last_files);
        });
      });
      EXPECT_EQ(error.has_value(), is_continued && !other_is_blind);
    }
  }
}

TEST(Publish, SpaceThatRunsOutForASmallFileStopsPublishing) {
  MemoryFileSystem files;
  put_config_folder(files);
  files.fail(Call::write, "tokenizer.json", 1, ErrorCode::no_space);
  EXPECT_THROW(run(*self_comm(), files, false), Error);
  EXPECT_FALSE(files.exists("/out/model"));
}

TEST(Publish, ANameThatLeavesTheTargetIsRefused) {
  for (const char* name : {"../x", "/etc/x", "a/b", "..", "", "additional_chat_templates/../x", "additional_chat_templates/.."}) {
    MemoryFileSystem files;
    put_config_folder(files);
    const Plan plan = small_plan(1);
    const auto comm = self_comm();
    const TargetFolder target = check_target_folder(*comm, files, "/out/model", {}, false);
    (void)open_partial(*comm, files, target, plan, {"merge x"});
    EXPECT_THROW(publish(*comm, files, target, plan, {{name, "/hf/tokenizer.json"}}, 0, last_files), Error) << name;
    EXPECT_FALSE(files.exists("/out/model")) << name;
  }
}

}  // namespace
}  // namespace unshard
