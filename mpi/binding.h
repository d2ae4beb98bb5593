// On which CPUs the launcher lets this process run: with one or two ranks a node, mpirun binds each of them to one core.
#pragma once

#include <optional>
#include <string>

namespace unshard {

/// Numbers of CPUs (hardware threads) on which a thread may run.
struct UsableCpus {
  int own = 0;          ///< of this process
  int of_launcher = 0;  ///< of the process that has started it
};

/// Local. None where one of them can't be known.
[[nodiscard]] std::optional<UsableCpus> usable_cpus();

/// Local, pure. What to tell the user when `threads` of a rank share fewer CPUs, while `ranks` of them on a node leave some to nobody.
[[nodiscard]] std::optional<std::string> note_of_binding(const UsableCpus& cpus, int ranks, int threads);

}  // namespace unshard
