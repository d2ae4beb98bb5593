// Reading back what another rank has written.
#include <gtest/gtest.h>

#include <functional>
#include <map>

#include "crc32c.h"
#include "support/memory_file_system.h"
#include "unshard/error.h"
#include "unshard/in_process_comm.h"
#include "unshard/move.h"
#include "unshard/publish.h"

namespace unshard::test {
namespace {

constexpr std::uint64_t part_bytes = 700'000;  // several reads

/// Two files of `ranks` parts each; rank r wrote part r of both.
class Written {
 public:
  explicit Written(int ranks) : ranks_(ranks) {
    for (std::uint32_t f = 0; f < 2; ++f) {
      std::string content;
      for (std::uint64_t i = 0; i < part_bytes * static_cast<std::uint64_t>(ranks); ++i) content += static_cast<char>(i * i / 1000 + f);
      plan.layout.files.push_back({"f" + std::to_string(f), "", content.size()});
      disk.put(path(f), content);
    }
  }

  void change(std::uint32_t file, const std::function<void(std::string&)>& edit) {
    std::string content = original_[file] = disk.content(path(file));
    edit(content);
    disk.put(path(file), content);
  }

  void verify_all(int ranks_per_node = 0) {
    InProcessOptions options;
    options.ranks_per_node = ranks_per_node;
    run_ranks(ranks_, options, [&](Comm& comm) {
      std::vector<Extent> extents;
      for (std::uint32_t f = 0; f < 2; ++f) {
        const std::string content = original_.contains(f) ? original_.at(f) : disk.content(path(f));
        const std::uint64_t begin = part_bytes * static_cast<std::uint64_t>(comm.rank());
        extents.push_back({f, begin, begin + part_bytes, crc32c(std::as_bytes(std::span(content)).subspan(begin, part_bytes))});
      }
      verify(comm, disk, "/out", plan, extents, {.threads = 2});
    });
  }

  [[nodiscard]] std::string path(std::uint32_t file) const { return "/out/" + partial_name(plan.layout.files[file]); }

  MemoryFileSystem disk;
  Plan plan;

 private:
  int ranks_;
  std::map<std::uint32_t, std::string> original_;  ///< what was written where a test has changed it since
};

void expect_found(Written& written, const std::string& text) {
  try {
    written.verify_all();
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::verification) << error.what();
    EXPECT_NE(std::string(error.what()).find(text), std::string::npos) << error.what();
  }
}

TEST(Verify, PassesWhatIsThere) {
  for (int ranks = 1; ranks <= 4; ++ranks) EXPECT_NO_THROW(Written(ranks).verify_all(ranks / 2)) << ranks;
}

TEST(Verify, NamesTheRangeOfAChangedByte) {
  for (int ranks = 1; ranks <= 3; ++ranks) {
    Written written(ranks);
    written.change(1, [](std::string& content) { content.back() ^= 1; });
    const std::uint64_t end = part_bytes * static_cast<std::uint64_t>(ranks);
    expect_found(written, written.path(1) + ": bytes " + std::to_string(end - part_bytes) + " to " + std::to_string(end));
  }
}

TEST(Verify, FindsAHole) {
  Written written(2);
  written.change(0, [](std::string& content) { content.replace(part_bytes + 4096, 4096, std::string(4096, '\0')); });
  expect_found(written, "bytes 700000 to 1400000");
}

TEST(Verify, FindsTwoBlocksThatChangedPlaces) {
  Written written(2);
  written.change(0, [](std::string& content) { std::swap_ranges(content.begin(), content.begin() + 1000, content.begin() + 300'000); });
  expect_found(written, "bytes 0 to 700000");
}

TEST(Verify, AFileThatEndsEarlyIsNotWhatWasWritten) {
  Written written(2);
  written.change(1, [](std::string& content) { content.resize(content.size() - 1); });
  expect_found(written, written.path(1));
}

TEST(Verify, ReadsBackWhatAnotherRankWrote) {
  // The bytes that a rank reads are counted on its own view of the disk; the parts differ in size.
  MemoryFileSystem disk;
  Plan plan;
  plan.layout.files.push_back({"f", "", 60});
  disk.put("/out/" + partial_name(plan.layout.files[0]), std::string(60, 'x'));
  std::vector<std::unique_ptr<MemoryFileSystem>> views;
  for (int rank = 0; rank < 4; ++rank) views.push_back(disk.other_node({}));
  InProcessOptions options;
  options.ranks_per_node = 2;
  run_ranks(4, options, [&](Comm& comm) {
    const std::uint64_t begins[] = {0, 10, 25, 40, 60};
    const std::uint64_t begin = begins[comm.rank()], end = begins[comm.rank() + 1];
    const std::string part(end - begin, 'x');
    verify(comm, *views[comm.rank()], "/out", plan, {{0, begin, end, crc32c(std::as_bytes(std::span(part)))}}, {.threads = 1});
  });
  // Two ranks a node: rank r reads what rank r + 2 wrote.
  EXPECT_EQ(views[0]->counters().read_bytes, 15U);
  EXPECT_EQ(views[1]->counters().read_bytes, 20U);
  EXPECT_EQ(views[2]->counters().read_bytes, 10U);
  EXPECT_EQ(views[3]->counters().read_bytes, 15U);
}

}  // namespace
}  // namespace unshard::test
