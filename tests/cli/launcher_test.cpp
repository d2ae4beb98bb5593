// Who started a process, told from its environment.
#include "launcher.h"

#include <gtest/gtest.h>

#include <map>

namespace unshard {
namespace {

Launch launched_with(const std::map<std::string, std::string>& variables) {
  return find_launch([&](const std::string& name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    return found == variables.end() ? std::nullopt : std::optional(found->second);
  });
}

TEST(Launcher, IsAbsentForAPlainCommand) {
  EXPECT_FALSE(launched_with({}).needs_mpi());
  EXPECT_FALSE(launched_with({{"SLURM_NTASKS", "8"}, {"SLURM_JOB_ID", "1"}}).needs_mpi()) << "a plain command of a batch script";
  EXPECT_FALSE(launched_with({{"OMPI_COMM_WORLD_SIZE", "many"}}).needs_mpi());
}

TEST(Launcher, OfOneTaskNeedsNoMpi) {
  EXPECT_FALSE(launched_with({{"OMPI_COMM_WORLD_SIZE", "1"}, {"PMIX_RANK", "0"}}).needs_mpi());
  EXPECT_FALSE(launched_with({{"SLURM_STEP_NUM_TASKS", "1"}, {"SLURM_PROCID", "0"}}).needs_mpi());
}

TEST(Launcher, OfOpenMpiTellsRankAndNode) {
  const Launch launch = launched_with(
      {{"OMPI_COMM_WORLD_SIZE", "4"}, {"OMPI_COMM_WORLD_RANK", "3"}, {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"}, {"PMIX_RANK", "3"}});
  EXPECT_TRUE(launch.needs_mpi());
  EXPECT_EQ(launch.tasks, 4U);
  EXPECT_EQ(launch.rank, 3U);
  EXPECT_TRUE(launch.one_node);
  EXPECT_TRUE(launch.can_connect);
  EXPECT_FALSE(launched_with({{"OMPI_COMM_WORLD_SIZE", "4"}, {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}}).one_node);
}

TEST(Launcher, OfOpenMpiCountsBeforeSlurms) {
  // mpirun inside a Slurm job starts one daemon a node with srun; its variables are still there.
  const Launch launch =
      launched_with({{"OMPI_COMM_WORLD_SIZE", "8"}, {"OMPI_COMM_WORLD_RANK", "5"}, {"SLURM_STEP_NUM_TASKS", "1"}, {"SLURM_PROCID", "0"}});
  EXPECT_EQ(launch.tasks, 8U);
  EXPECT_EQ(launch.rank, 5U);
}

TEST(Launcher, SrunNeedsAWayToConnect) {
  const std::map<std::string, std::string> srun = {{"SLURM_STEP_NUM_TASKS", "4"}, {"SLURM_PROCID", "2"}, {"SLURM_STEP_NUM_NODES", "1"}};
  const Launch without = launched_with(srun);
  EXPECT_TRUE(without.needs_mpi());
  EXPECT_FALSE(without.can_connect);
  EXPECT_EQ(without.rank, 2U);
  auto with_pmix = srun;
  with_pmix["PMIX_RANK"] = "2";
  EXPECT_TRUE(launched_with(with_pmix).can_connect);
  EXPECT_TRUE(launched_with(with_pmix).one_node);
}

TEST(Launcher, OfUnknownSizeNeedsMpi) {
  const Launch launch = launched_with({{"PMIX_RANK", "1"}});
  EXPECT_TRUE(launch.needs_mpi());
  EXPECT_EQ(launch.rank, 1U);
}

TEST(Advice, NamesTheVariableTheCountAndTheRemedy) {
  const std::string text = advice_for_singletons(launched_with({{"SLURM_STEP_NUM_TASKS", "4"}}));
  EXPECT_EQ(text.find("SLURM_STEP_NUM_TASKS says 4 tasks, but MPI sees only this one"), 0U) << text;
  EXPECT_NE(text.find("srun use --mpi=pmix"), std::string::npos) << text;
}

}  // namespace
}  // namespace unshard
