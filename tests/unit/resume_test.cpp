// The command `merge` after a failure: the same command goes on, another one does not, and no byte of the result depends on any of it.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <fstream>

#include "run_lock.h"
#include "support/command_run.h"
#include "support/real_disk.h"
#include "unshard/merge.h"

namespace unshard {
namespace {

using testing::content;
using testing::TemporaryFolder;

const std::string model_case = UNSHARD_CASES "/fsdp/two_stages/";

/// The real disk, on which something happens when a file is opened to be written.
class Disturbed final : public testing::RealDisk {
 public:
  explicit Disturbed(std::function<void(const std::string& path)> happens) : happens_(std::move(happens)) {}

  std::unique_ptr<File> open_for_writing(const std::string& path, bool create) override {
    if (!create) happens_(path);
    return RealDisk::open_for_writing(path, create);
  }

 private:
  std::function<void(const std::string& path)> happens_;
};

class Resume : public ::testing::Test {
 protected:
  Resume() {
    folder_.copy(model_case + "input", "input");
    options_.input.local_dirs = {folder_ / "input"};
    options_.target_dir = folder_ / "model";
    options_.max_shard_bytes = 6000;  // several files, so that there is a middle to fail in
    options_.input.threads = 1;
    MergeOptions whole = options_;
    whole.target_dir = folder_ / "whole";
    (void)testing::run_command(1, [&](const Session& session) { (void)merge(session, whole); });
    for (const auto& entry : std::filesystem::directory_iterator(whole.target_dir)) names_.push_back(entry.path().filename().string());
  }

  /// What the command says; `failed` gets its error.
  std::string run(int ranks = 2, const std::function<void(const std::string&)>& happens = {}) {
    std::string lines;
    error_.clear();
    try {
      run_ranks(ranks, {}, [&](Comm& comm) {
        testing::RecordingLog log;
        Disturbed disk([&](const std::string& path) {
          if (happens) happens(path);
        });
        const auto said = [&] {
          if (comm.rank() == 0) lines = log.lines;
        };
        try {
          (void)merge({comm, disk, log}, options_);
        } catch (...) {
          said();
          throw;
        }
        said();
      });
    } catch (const Error& error) {
      error_ = std::string(name_of(error.code())) + ": " + error.what();
    }
    return lines;
  }

  /// Fails when the third file is to be written. One that is there from an earlier run is opened before.
  std::string run_that_fails(int ranks = 1, int opens_before = 0) {
    std::atomic<int> opens = 0;
    const std::string lines = run(ranks, [&](const std::string& path) {
      if (path.find("model-00003-of") != std::string::npos && opens++ >= opens_before)
        throw Error(ErrorCode::io, path + ": broken on purpose");
    });
    EXPECT_NE(error_.find("broken on purpose"), std::string::npos) << error_;
    EXPECT_FALSE(std::filesystem::exists(options_.target_dir));
    return lines;
  }

  void expect_model() {
    EXPECT_EQ(error_, "");
    std::size_t count = 0;
    for (const auto& entry : std::filesystem::directory_iterator(options_.target_dir)) count += entry.exists() ? 1 : 0;
    EXPECT_EQ(count, names_.size()) << "something is left in the model folder";
    for (const std::string& name : names_) EXPECT_EQ(content(folder_ / ("model/" + name)), content(folder_ / ("whole/" + name))) << name;
    EXPECT_FALSE(std::filesystem::exists(folder_ / "model.unshard-partial"));
  }

  [[nodiscard]] std::string partial(const std::string& name) const { return folder_ / ("model.unshard-partial/" + name); }
  [[nodiscard]] std::string partial_weights(int number) const {
    for (const auto& entry : std::filesystem::directory_iterator(folder_ / "model.unshard-partial")) {
      if (entry.path().filename().string().starts_with("model-0000" + std::to_string(number) + "-of")) return entry.path();
    }
    return "";
  }

  /// All bytes after the header of a safetensors file.
  static void overwrite_tensors(const std::string& path) {
    std::string bytes = content(path);
    std::size_t header_bytes = 0;
    for (int i = 7; i >= 0; --i) header_bytes = header_bytes << 8 | static_cast<unsigned char>(bytes[static_cast<std::size_t>(i)]);
    std::fill(bytes.begin() + 8 + static_cast<std::ptrdiff_t>(header_bytes), bytes.end(), '\x5a');
    std::ofstream(path, std::ios::binary) << bytes;
  }

  static constexpr const char* goes_on = "Going on from an earlier run";
  TemporaryFolder folder_;
  MergeOptions options_;
  std::vector<std::string> names_;
  std::string error_;
};

TEST_F(Resume, TheSameCommandGoesOnWithAnyNumberOfRanksAndAnyBuffer) {
  for (const int ranks : {1, 2, 3, 4}) {
    run_that_fails();
    options_.input.buffer_bytes = std::uint64_t{1} << (20 + ranks);
    EXPECT_NE(run(ranks).find(goes_on), std::string::npos);
    expect_model();
    std::filesystem::remove_all(options_.target_dir);
  }
}

TEST_F(Resume, ItGoesOnAsOftenAsItFails) {
  run_that_fails();
  EXPECT_NE(run_that_fails(2, 1).find(goes_on), std::string::npos);
  EXPECT_NE(run_that_fails(3, 1).find(goes_on), std::string::npos);
  EXPECT_NE(run().find(goes_on), std::string::npos);
  expect_model();
}

TEST_F(Resume, BytesThatAreNotWhatWasWrittenAreWrittenAgain) {
  run_that_fails();
  const std::string path = partial_weights(1);
  std::string bytes = content(path);
  bytes[bytes.size() - 5] = static_cast<char>(bytes[bytes.size() - 5] ^ 1);  // lost with a node's page cache
  std::ofstream(path, std::ios::binary) << bytes;
  EXPECT_NE(run().find(goes_on), std::string::npos);
  expect_model();
}

TEST_F(Resume, AFileThatIsGoneOrOfAnotherSizeIsWrittenAgain) {
  run_that_fails();
  std::filesystem::remove(partial_weights(1));
  std::filesystem::resize_file(partial_weights(2), 100);
  (void)run();
  expect_model();
}

TEST_F(Resume, JournalsThatSayNonsenseDoNoHarm) {
  run_that_fails();
  std::ofstream(partial(".unshard-journal-1-0"), std::ios::binary) << std::string(5000, 'x');
  std::ofstream(partial(".unshard-journal-7-7"), std::ios::binary) << "short";
  std::filesystem::create_directories(partial(".unshard-journal-8-8"));
  EXPECT_EQ(run().find(goes_on), std::string::npos);
  expect_model();
}

TEST_F(Resume, RestartStartsAnew) {
  run_that_fails();
  options_.restart = true;
  EXPECT_EQ(run().find(goes_on), std::string::npos);
  expect_model();
}

TEST_F(Resume, OtherOptionsNeedRestart) {
  run_that_fails();
  options_.max_shard_bytes = 7000;
  (void)run();
  EXPECT_TRUE(error_.starts_with("usage: ")) << error_;
  EXPECT_NE(error_.find("--restart"), std::string::npos) << error_;
  options_.restart = true;
  (void)run();
  EXPECT_EQ(error_, "");
}

void touch(const std::string& path) {
  const timespec times[2] = {{1000, 5}, {1000, 5}};
  ASSERT_EQ(::utimensat(AT_FDCWD, path.c_str(), times, 0), 0);
}

TEST_F(Resume, InputsThatHaveChangedNeedRestart) {
  run_that_fails();
  touch(folder_ / "input/model_world_size_2_rank_1.pt");
  (void)run();
  EXPECT_TRUE(error_.starts_with("usage: ")) << error_;
  EXPECT_NE(error_.find("--restart"), std::string::npos) << error_;
  options_.restart = true;
  (void)run();
  expect_model();
}

TEST_F(Resume, InputsThatChangeWhileTheyAreReadAreNotPublished) {
  for (const int ranks : {1, 3}) {
    (void)run(ranks, [&](const std::string& path) {
      if (path.find("safetensors") != std::string::npos) touch(folder_ / "input/model_world_size_2_rank_1.pt");
    });
    EXPECT_TRUE(error_.starts_with("bad_input: ")) << error_;
    EXPECT_NE(error_.find("model_world_size_2_rank_1.pt: changed"), std::string::npos) << error_;
    EXPECT_FALSE(std::filesystem::exists(options_.target_dir));
    std::filesystem::remove_all(folder_ / "model.unshard-partial");
    std::ofstream(folder_ / "input/model_world_size_2_rank_1.pt", std::ios::app).flush();
    std::filesystem::last_write_time(folder_ / "input/model_world_size_2_rank_1.pt", std::filesystem::file_time_type::clock::now());
  }
}

TEST_F(Resume, ASecondRunOnTheSameTargetIsRefusedAndTheFirstOneNamed) {
  std::filesystem::create_directories(folder_ / "model.unshard-partial");
  const auto files = posix_file_system();
  const auto held = lock_folder(*files, folder_ / "model.unshard-partial", "n017");
  for (const bool restart : {false, true}) {
    options_.restart = restart;
    (void)run();
    EXPECT_TRUE(error_.starts_with("usage: ")) << error_;
    EXPECT_NE(error_.find("host n017, process " + std::to_string(::getpid())), std::string::npos) << error_;
  }
}

TEST_F(Resume, ALockThatNobodyHoldsAnyMoreIsNoObstacle) {
  run_that_fails();
  std::ofstream(partial(".unshard-lock")) << "host n017, process 1\n";
  (void)run();
  expect_model();
}

TEST_F(Resume, StageTwoGoesOnAndStageOneIsNotWrittenAgain) {
  options_.stage = 1;
  options_.stage_layers = 2;
  (void)run();
  ASSERT_EQ(error_, "");
  options_.stage = 2;
  std::atomic<int> writes = 0;
  (void)run(2, [&](const std::string& path) {
    if (path.find("safetensors") != std::string::npos && ++writes == 3) throw Error(ErrorCode::io, path + ": broken on purpose");
  });
  ASSERT_NE(error_.find("broken on purpose"), std::string::npos) << error_;
  (void)run(3);
  expect_model();
}

TEST_F(Resume, StageTwoWritesAgainWhatIsNotAsStageOneLeftIt) {
  options_.verify = false;  // of what this run writes; what an earlier one wrote is compared all the same
  options_.stage_layers = 2;
  for (const bool loses_journals : {false, true}) {
    options_.stage = 1;
    (void)run();
    ASSERT_EQ(error_, "");
    std::vector<std::string> journals;
    for (const auto& entry : std::filesystem::directory_iterator(folder_ / "model.unshard-partial")) {
      const std::string path = entry.path();
      if (path.find(".unshard-journal-") != std::string::npos) journals.push_back(path);
      if (path.ends_with(".safetensors.part")) overwrite_tensors(path);
    }
    for (const std::string& path : journals)
      if (loses_journals) std::filesystem::remove(path);
    options_.stage = 2;
    EXPECT_NE(run(3).find("bytes are not what stage 1 wrote there"), std::string::npos);
    expect_model();
    std::filesystem::remove_all(options_.target_dir);
  }
}

TEST_F(Resume, StageTwoOfOtherInputsThanStageOneIsRefused) {
  options_.stage_layers = 2;
  options_.stage = 1;
  (void)run();
  ASSERT_EQ(error_, "");
  std::filesystem::last_write_time(folder_ / "input/model_world_size_2_rank_1.pt", std::filesystem::file_time_type::clock::now());
  options_.stage = 2;
  (void)run();
  EXPECT_TRUE(error_.starts_with("usage: ")) << error_;
  EXPECT_NE(error_.find("run --stage 1 again"), std::string::npos) << error_;
  EXPECT_FALSE(std::filesystem::exists(options_.target_dir));
}

TEST_F(Resume, WhatARunWasAboutToPublishIsTakenBack) {
  run_that_fails();
  const std::string growing = partial_weights(1);
  std::filesystem::rename(growing, growing.substr(0, growing.size() - 5));  // without .part
  std::ofstream(partial("config.json")) << "{}";
  EXPECT_NE(run().find(goes_on), std::string::npos);
  expect_model();
}

}  // namespace
}  // namespace unshard
