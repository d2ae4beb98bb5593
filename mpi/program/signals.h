// SIGINT, SIGTERM and SIGUSR1: a request to stop.
#pragma once

#include <cstdint>

namespace unshard {

enum class OnSignal : std::uint8_t {
  stop_at_next_piece,  ///< of a command that goes through data, on all ranks together; a second signal ends it at once
  end_at_once,         ///< of a command that is done in a moment
};

/// Local. Once per process, before the work begins. `speaks`: this rank prints the line when it ends at once.
void watch_signals(OnSignal reaction, bool speaks);

/// Local. From now on a write to a reader that has gone away (`| head`) fails with EPIPE, and one beyond the limit for the size of a file
/// (`ulimit -f`) with EFBIG, instead of ending the process.
void fail_instead_of_dying();

/// Local. From now on signals are ignored: the work is done.
void ignore_signals();

/// Local. The signal that has arrived, or 0.
[[nodiscard]] int received_signal();

}  // namespace unshard
