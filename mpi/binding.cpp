#include "binding.h"

#include <sched.h>
#include <unistd.h>

#include <cstdint>

namespace unshard {
namespace {

std::optional<int> cores_of(pid_t process) {
  cpu_set_t cores;
  if (sched_getaffinity(process, sizeof cores, &cores) != 0) return std::nullopt;  // another user's, or more cores than fit in there
  return CPU_COUNT(&cores);
}

}  // namespace

std::optional<UsableCores> usable_cores() {
  const std::optional<int> own = cores_of(0), of_launcher = cores_of(getppid());
  if (!own || !of_launcher) return std::nullopt;
  return UsableCores{*own, *of_launcher};
}

std::optional<std::string> note_of_binding(const UsableCores& cores, int ranks, int threads) {
  const bool leaves_some = std::int64_t{cores.own} * ranks < cores.of_launcher;
  if (cores.own >= threads || !leaves_some) return std::nullopt;
  return "the launcher has bound this rank to " + std::to_string(cores.own) + " of its " + std::to_string(cores.of_launcher) +
         " cores, for " + std::to_string(threads) +
         " I/O threads: `mpirun --bind-to none` or `srun --cpus-per-task=" + std::to_string(threads) + "` lets them use more";
}

}  // namespace unshard
