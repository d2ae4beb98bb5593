// Before anything is moved: how memory is divided, how long steps are, and which ranks read.
#include "readers.h"

#include <gtest/gtest.h>

#include "move_state.h"
#include "unshard/in_process_comm.h"
#include "unshard/move.h"

namespace unshard::test {
namespace {

TEST(Budget, NeverExceedsWhatIsGiven) {
  for (const std::uint64_t buffer :
       {std::uint64_t{512} << 10, std::uint64_t{1} << 20, std::uint64_t{64} << 20, std::uint64_t{256} << 20, std::uint64_t{3} << 30}) {
    for (const int threads : {1, 2, 4, 16, 64}) {
      const Budget direct = direct_budget(buffer, threads);
      EXPECT_LE(direct.threads * (direct.scratch_bytes + 2 * direct.piece.most_bytes), buffer);
      EXPECT_GE(direct.piece.usual_bytes, std::uint64_t{64} << 10);
      const std::uint64_t step = step_bytes_for(buffer, IoMode::automatic, 2);
      const Budget rounds = rounds_budget(buffer, threads, step);
      EXPECT_LE(3 * step + rounds.scratch_bytes + rounds.threads * (rounds.scratch_bytes + step) + 2 * rounds.send_bytes, buffer);
      EXPECT_GE(rounds.send_bytes, step) << buffer << " " << threads;
      EXPECT_LE(rounds.send_bytes, std::uint64_t{256} << 20) << "Comm::send";
      Plan plan;
      plan.step_bytes = step;
      EXPECT_LE(least_buffer_bytes(plan, {}), buffer);
    }
  }
}

TEST(Steps, AreShortWhereRanksOfOneNodeWriteTogether) {
  constexpr std::uint64_t mebibyte = std::uint64_t{1} << 20;
  EXPECT_EQ(step_bytes_for(64 * mebibyte, IoMode::collective, 1), mebibyte);
  EXPECT_EQ(step_bytes_for(4 * mebibyte, IoMode::collective, 1), mebibyte / 2);
  EXPECT_EQ(step_bytes_for(64 * mebibyte, IoMode::collective, 2), 8 * mebibyte);
  EXPECT_EQ(step_bytes_for(64 * mebibyte, IoMode::automatic, 1), 8 * mebibyte);
}

TEST(Readers, AreHomeRanksWhereFilesAreOutOfSightOrOpensAreManyAndCanNotBeShared) {
  for (const bool can_share : {false, true}) {
    const auto readers = [&](std::uint64_t opens, bool see_all) {
      return readers_for({.files = 8, .opens_by_owners = opens, .owners_see_all = see_all, .can_share = can_share});
    };
    EXPECT_EQ(readers(16, true), Readers::owners);
    EXPECT_EQ(readers(17, true), can_share ? Readers::sharing : Readers::homes);
    EXPECT_EQ(readers(8, false), Readers::homes);
  }
}

/// Four files; rank r needs `needed[r]` of them. Two ranks a node.
ReadFacts facts_of(const std::vector<std::vector<std::uint32_t>>& needed, const std::vector<std::uint32_t>& nodes_of_last_file,
                   int ranks_per_node = 2, std::size_t open_files_of_last_rank = 6) {
  Source source;
  for (int f = 0; f < 4; ++f) {
    ShardFile& file = source.files.emplace_back();
    file.path = file.label = "x" + std::to_string(f);
    file.nodes = {0, 1};
  }
  source.files[3].nodes = nodes_of_last_file;
  ReadFacts facts;
  InProcessOptions in_process;
  in_process.ranks_per_node = ranks_per_node;
  run_ranks(static_cast<int>(needed.size()), in_process, [&](Comm& comm) {
    ChunkTable chunks;
    for (const std::uint32_t file : needed[comm.rank()]) chunks.chunks.emplace_back().file = file;
    const ReadFacts here = read_facts(comm, source, chunks, comm.rank() + 1 < comm.size() ? 6 : open_files_of_last_rank);
    if (comm.rank() == 0) facts = here;
  });
  return facts;
}

TEST(Readers, OpensOfOwnersCountTheHeadersAndEveryFurtherFile) {
  const ReadFacts own = facts_of({{0, 0}, {1}, {2}, {3}}, {0, 1});  // every rank needs the file whose headers it has read
  EXPECT_EQ(own.files, 4U);
  EXPECT_EQ(own.opens_by_owners, 4U);
  EXPECT_TRUE(own.owners_see_all);
  EXPECT_EQ(facts_of({{3, 0, 1, 2, 3}, {0, 1, 2, 3}, {}, {3}}, {0, 1}).opens_by_owners, 10U);
}

TEST(Readers, ShareFilesOnOneNodeWhereEachMayHaveHalfAsManyAgainOpen) {
  EXPECT_TRUE(facts_of({{0}, {1}, {2}, {3}}, {0}, 4).can_share);
  EXPECT_FALSE(facts_of({{0}, {1}, {2}, {3}}, {0, 1}, 2).can_share);
  EXPECT_FALSE(facts_of({{0}, {1}, {2}, {3}}, {0}, 4, 5).can_share);
  EXPECT_FALSE(facts_of({{0, 1, 2, 3}}, {0}, 1).can_share);
}

TEST(Readers, OwnersMustSeeOnlyWhatTheyNeed) {
  EXPECT_TRUE(facts_of({{0}, {1}, {2}, {3}}, {1}).owners_see_all);
  EXPECT_FALSE(facts_of({{0}, {1}, {2}, {3}}, {0}).owners_see_all);
}

}  // namespace
}  // namespace unshard::test
