// Open files passed between ranks of a node: each is opened once, and every rank reads all of them.
#include "pass_files.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <memory>

#include "support/memory_file_system.h"
#include "unshard/agree.h"
#include "unshard/error.h"
#include "unshard/in_process_comm.h"

namespace unshard {
namespace {

/// So many files, each with its number in it as text.
Source make_files(const std::filesystem::path& folder, std::size_t count) {
  std::filesystem::create_directories(folder);
  Source source;
  for (std::size_t number = 0; number < count; ++number) {
    ShardFile& file = source.files.emplace_back();
    file.label = std::to_string(number);
    file.path = (folder / file.label).string();
    file.nodes = {0};
    file.size_bytes = file.label.size();
    std::ofstream(file.path) << number;
  }
  return source;
}

class PassFiles : public ::testing::Test {
 protected:
  void TearDown() override { std::filesystem::remove_all(folder_); }
  const std::filesystem::path folder_ = std::filesystem::temp_directory_path() / ("unshard-pass-" + std::to_string(::getpid()));
};

/// How many this process may have, raised as far as it goes: all ranks are in this process here.
std::size_t most_descriptors() {
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
  return limit.rlim_cur;
}

std::size_t open_descriptors() {
  return static_cast<std::size_t>(std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {}));
}

TEST_F(PassFiles, EveryRankReadsEveryFileAndEachWasOpenedOnce) {
  const std::size_t most = most_descriptors();
  for (const std::size_t count : {1U, 5U, 300U, 600U}) {  // a message holds 250
    const Source source = make_files(folder_, count);
    for (const int ranks : {1, 2, 3, 4}) {
      SCOPED_TRACE(std::to_string(count) + " files, " + std::to_string(ranks) + " ranks");
      if (count * static_cast<std::size_t>(ranks) > most / 2) continue;
      std::vector<std::uint64_t> opens(static_cast<std::size_t>(ranks));
      run_ranks(ranks, {.seed = count}, [&](Comm& comm) {
        const auto disk = posix_file_system();
        FileCache files(*disk, source, count);
        pass_files_on(comm, files, source);
        for (std::uint32_t file = 0; file < count; ++file) {
          std::string text(std::to_string(file).size(), ' ');
          const std::shared_ptr<File> open = files.get(file);
          open->read_at(0, std::as_writable_bytes(std::span(text)));
          ASSERT_EQ(text, std::to_string(file));
          ASSERT_EQ(open->path(), source.files[file].path);
          ASSERT_EQ(open->size(), text.size());
        }
        opens[static_cast<std::size_t>(comm.rank())] = disk->counters().opens;
      });
      std::uint64_t all = 0;
      for (const std::uint64_t of_rank : opens) all += of_rank;
      EXPECT_EQ(all, count);
    }
  }
}

TEST_F(PassFiles, WithoutDescriptorsNoRankGetsAnyAndTheReasonIsTheSameEverywhere) {
  const std::size_t before = open_descriptors();
  for (const std::size_t count : {2U, 6U}) {  // with 2 a rank has none of its own: it fails only when it has received one
    const Source source = make_files(folder_, count);
    for (const int ranks : {2, 3, 4}) {
      for (int without = 0; without < ranks; ++without) {
        const auto failure = attempt([&] {
          run_ranks(ranks, {.seed = static_cast<std::uint64_t>(without)}, [&](Comm& comm) {
            const auto disk = posix_file_system();
            test::MemoryFileSystem memory;
            for (const ShardFile& file : source.files) memory.put(file.path, file.label);
            FileCache files(comm.rank() == without ? static_cast<FileSystem&>(memory) : *disk, source, count);
            pass_files_on(comm, files, source);
          });
        });
        EXPECT_TRUE(failure);
        EXPECT_EQ(open_descriptors(), before);
      }
    }
  }
}

TEST_F(PassFiles, AFileThatCanNotBeOpenedOrHasAnotherSizeIsNamed) {
  Source source = make_files(folder_, 4);
  const auto pass = [&] {
    const auto failure = attempt([&] {
      run_ranks(2, {}, [&](Comm& comm) {
        const auto disk = posix_file_system();
        FileCache files(*disk, source, 4);
        pass_files_on(comm, files, source);
      });
    });
    return failure ? std::string(failure->what()) : "";
  };
  EXPECT_EQ(pass(), "");
  std::filesystem::remove(folder_ / "2");
  EXPECT_NE(pass().find((folder_ / "2").string()), std::string::npos) << pass();
  std::ofstream(folder_ / "2") << "longer";
  EXPECT_NE(pass().find("has 6 bytes, 1 were expected"), std::string::npos) << pass();
}

}  // namespace
}  // namespace unshard
