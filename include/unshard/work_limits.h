// What a step that goes through data may use, and what may stop it.
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>

#include "unshard/error.h"

namespace unshard {

struct WorkLimits {
  std::uint64_t buffer_bytes = std::uint64_t{256} << 20;  ///< bound of all buffers of this rank together
  int threads = 4;                                        ///< I/O threads of this rank
  /// Asked before every piece, by any thread: the number of a signal that this rank has received, 0 for none.
  std::function<int()> signal = {};
};

/// The least WorkLimits::buffer_bytes with which stored tensors can be read and compared (prove_coverage, same_bits, check --deep).
inline constexpr std::uint64_t least_reading_bytes = std::uint64_t{512} << 10;

/// Local, pure. Throws Error(usage) naming `least_bytes` when the limits allow less.
void require_buffers(std::string_view step, const WorkLimits& limits, std::uint64_t least_bytes);

/// Local. Throws stopped_by(signal) when a signal has arrived. A loop asks between two pieces; the agreement at the end of its step then
/// stops all ranks, so no loop needs a collective call of its own.
void stop_if_signalled(const WorkLimits& limits);

/// Local, pure. Error(128 + signal).
[[nodiscard]] Error stopped_by(int signal);

/// Local, pure. Whether an error stands for a signal, which is no fault of the file that was being read.
[[nodiscard]] inline bool is_stop(ErrorCode code) {
  return static_cast<int>(code) > 128;
}

}  // namespace unshard
