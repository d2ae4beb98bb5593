// Who started this process: nobody (a plain command), or a launcher with several tasks. Read from the environment, before MPI is touched.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

namespace unshard {

/// A variable of the environment, or none.
using Environment = std::function<std::optional<std::string>(const std::string& name)>;
[[nodiscard]] Environment process_environment();

struct Launch {
  std::string variable;                ///< that told: "OMPI_COMM_WORLD_SIZE"; empty: no launcher
  std::optional<std::uint64_t> tasks;  ///< how many it started, where that is told
  std::uint64_t rank = 0;              ///< of this process, as the launcher counts; 0 where it is not told
  bool one_node = false;               ///< all tasks are on this node
  bool ends_together = true;           ///< when a task is killed the launcher ends the others; srun does so only if told
  bool can_connect = true;             ///< false: started by srun without a way for MPI to find the other tasks

  /// One task needs no MPI: every command gives the same bytes for any number of ranks.
  [[nodiscard]] bool needs_mpi() const { return !variable.empty() && tasks != 1; }
};

/// Local. SLURM_NTASKS says nothing: the plain commands of a batch script have it too.
[[nodiscard]] Launch find_launch(const Environment& environment);

/// What to tell a user whose tasks did not find each other.
[[nodiscard]] std::string advice_for_singletons(const Launch& launch);

}  // namespace unshard
