// On which cores the launcher lets this process run: with one or two ranks a node, mpirun binds each of them to one core.
#pragma once

#include <optional>
#include <string>

namespace unshard {

/// Numbers of cores on which a thread may run.
struct UsableCores {
  int own = 0;          ///< of this process
  int of_launcher = 0;  ///< of the process that has started it
};

/// Local. None where one of them can't be known.
[[nodiscard]] std::optional<UsableCores> usable_cores();

/// Local, pure. What to tell the user when the I/O threads of a rank share too few cores while others of its node are left to nobody.
/// `ranks` counts those of its node.
[[nodiscard]] std::optional<std::string> note_of_binding(const UsableCores& cores, int ranks, int threads);

}  // namespace unshard
