// What is told of the ranks of a merge.
#include "rank_figures.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "unshard/in_process_comm.h"

namespace unshard {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

RankFigures figures(const std::string& host, std::uint64_t written_bytes, std::uint64_t busy_ns) {
  RankFigures result;
  result.host = host;
  result.written_bytes = written_bytes;
  result.busy_ns = busy_ns;
  return result;
}

std::vector<std::string> names(const StepTimes& times) {
  std::vector<std::string> result;
  for (const StepTime& time : times.steps()) result.push_back(time.step);
  return result;
}

TEST(StepTimes, AStepThatIsEnteredAgainCountsOn) {
  StepTimes times;
  times.enter("plan");
  times.enter("move");
  times.enter("plan");
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  times.leave();
  EXPECT_THAT(names(times), ElementsAre("plan", "move"));
  EXPECT_GE(times.steps()[0].ns, 20'000'000U);
  EXPECT_LT(times.steps()[1].ns, 20'000'000U);
  EXPECT_EQ(times.total_ns(), times.steps()[0].ns + times.steps()[1].ns);
}

TEST(StepTimes, TimeAfterTheEndOfAStepCountsNowhere) {
  StepTimes times;
  times.enter("plan");
  times.leave();
  const std::uint64_t before = times.total_ns();
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  times.leave();
  EXPECT_EQ(times.total_ns(), before);
}

TEST(Figures, TheSummaryHasAllBytesTheSpeedAndTheSlowestRank) {
  const std::vector<RankFigures> ranks = {figures("n1", 3'000'000, 500'000'000), figures("n2", 1'000'000, 1'500'000'000)};
  EXPECT_EQ(slowest_rank(ranks), 1U);
  EXPECT_EQ(summary_line(ranks, 2'000'000'000), "Merged 4000000 bytes in 2.000 s, 2.00 MB/s; slowest rank 1 on n2 (busy for 1.500 s)");
}

TEST(Figures, NoTimeIsNoDivisionByZero) {
  EXPECT_THAT(summary_line({figures("n1", 1, 0)}, 0), HasSubstr("1 bytes in 0.000 s, 0 B/s"));
}

TEST(Figures, EveryRankHasALineWithItsSteps) {
  RankFigures rank = figures("n1", 10, 250'000'000);
  rank.read_bytes = 12;
  rank.peak_rss_bytes = 4096;
  rank.steps = {{"plan", 1'000'000}, {"move", 300'000'000}};
  const std::vector<std::string> lines = rank_lines({rank, rank});
  ASSERT_EQ(lines.size(), 2U);
  for (const char* part :
       {"rank 1 on n1: read 12, exchanged 0, wrote 10 bytes", "peak memory 4096 bytes", "plan 0.001", "move 0.300 (busy 0.250"})
    EXPECT_THAT(lines[1], HasSubstr(part));
}

TEST(Figures, OfAllRanksAreOnRankZero) {
  const auto files = posix_file_system();
  run_ranks(3, {}, [&](Comm& comm) {
    MoveReport moved;
    moved.read_bytes = static_cast<std::uint64_t>(comm.rank()) + 100;
    moved.messages = static_cast<std::uint64_t>(comm.rank()) + 7;
    moved.busy_ns = comm.rank() == 2 ? 2'000'000'000 : 1'000'000'000;
    StepTimes times;
    times.enter("move");
    times.leave();
    const std::vector<RankFigures> all = gather_figures(comm, *files, moved, times);
    ASSERT_EQ(all.size(), comm.rank() == 0 ? 3U : 0U);
    if (comm.rank() != 0) return;
    for (std::size_t rank = 0; rank < 3; ++rank) {
      EXPECT_EQ(all[rank].read_bytes, rank + 100);
      EXPECT_EQ(all[rank].messages, rank + 7);
      EXPECT_EQ(all[rank].host, comm.host_of(static_cast<int>(rank)));
      EXPECT_GT(all[rank].peak_rss_bytes, 1'000'000U);
      EXPECT_EQ(all[rank].steps.at(0).step, "move");
    }
    EXPECT_EQ(slowest_rank(all), 2U);
  });
}

}  // namespace
}  // namespace unshard
