#include "binding.h"

#include <sched.h>
#include <unistd.h>

#include <cstdint>

namespace unshard {
namespace {

std::optional<int> cpus_of(pid_t process) {
  cpu_set_t cpus;
  if (sched_getaffinity(process, sizeof cpus, &cpus) != 0) return std::nullopt;  // another user's, or more CPUs than fit in there
  return CPU_COUNT(&cpus);
}

}  // namespace

std::optional<UsableCpus> usable_cpus() {
  const std::optional<int> own = cpus_of(0), of_launcher = cpus_of(getppid());
  if (!own || !of_launcher) return std::nullopt;
  return UsableCpus{*own, *of_launcher};
}

std::optional<std::string> note_of_binding(const UsableCpus& cpus, int ranks, int threads) {
  const bool leaves_some = std::int64_t{cpus.own} * ranks < cpus.of_launcher;
  if (cpus.own >= threads || !leaves_some) return std::nullopt;
  return "the launcher has bound this rank to " + std::to_string(cpus.own) + " of its " + std::to_string(cpus.of_launcher) + " CPUs, for " +
         std::to_string(threads) + " I/O threads: `mpirun --bind-to none` or `srun --cpus-per-task=" + std::to_string(threads) +
         "` gives them more";
}

}  // namespace unshard
