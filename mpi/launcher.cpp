#include "launcher.h"

#include <charconv>
#include <cstdlib>

namespace unshard {

namespace {

std::optional<std::uint64_t> number_in(const Environment& environment, const std::string& name) {
  const std::optional<std::string> text = environment(name);
  if (!text) return std::nullopt;
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), value);
  if (error != std::errc{} || end != text->data() + text->size()) return std::nullopt;
  return value;
}

/// A launcher's variables: of the number of tasks, and of this task's rank.
struct Launcher {
  const char* size;
  const char* rank;
};

}  // namespace

Environment process_environment() {
  return [](const std::string& name) -> std::optional<std::string> {
    const char* value = std::getenv(name.c_str());
    return value == nullptr ? std::nullopt : std::optional<std::string>(value);
  };
}

Launch find_launch(const Environment& environment) {
  Launch launch;
  constexpr Launcher launchers[] = {
      {"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"}, {"PMI_SIZE", "PMI_RANK"}, {"SLURM_STEP_NUM_TASKS", "SLURM_PROCID"}};
  const bool by_pmix = environment("PMIX_RANK").has_value();
  for (const Launcher& launcher : launchers) {
    launch.tasks = number_in(environment, launcher.size);
    if (!launch.tasks) continue;
    launch.variable = launcher.size;
    launch.rank = number_in(environment, launcher.rank).value_or(0);
    break;
  }
  if (by_pmix && (launch.variable.empty() || launch.variable == "SLURM_STEP_NUM_TASKS")) {
    if (launch.variable.empty()) launch.variable = "PMIX_RANK";
    launch.rank = number_in(environment, "PMIX_RANK").value_or(0);
  }
  launch.ends_together = launch.variable != "SLURM_STEP_NUM_TASKS";
  launch.can_connect = launch.variable != "SLURM_STEP_NUM_TASKS" || by_pmix || environment("PMI_RANK") || environment("PMI_FD");
  launch.one_node = launch.variable == "OMPI_COMM_WORLD_SIZE"
                        ? number_in(environment, "OMPI_COMM_WORLD_LOCAL_SIZE") == launch.tasks
                        : launch.variable == "SLURM_STEP_NUM_TASKS" && number_in(environment, "SLURM_STEP_NUM_NODES") == 1;
  return launch;
}

std::string advice_for_singletons(const Launch& launch) {
  const std::string found = launch.tasks ? launch.variable + " says " + std::to_string(*launch.tasks) + " tasks"
                                         : launch.variable + " says that there is a launcher";
  return found +
         ", but MPI sees only this one: the launcher did not connect them; with srun use --mpi=pmix (srun --mpi=list shows what there is), "
         "or start with "
         "the mpirun of the MPI that unshard was built with";
}

}  // namespace unshard
