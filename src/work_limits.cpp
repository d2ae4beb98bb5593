#include "unshard/work_limits.h"

#include <cstring>
#include <string>

namespace unshard {

void require_buffers(std::string_view step, const WorkLimits& limits, std::uint64_t least_bytes) {
  if (limits.buffer_bytes >= least_bytes) return;
  throw Error(ErrorCode::usage, std::string(step) + ": --buffer-size " + std::to_string(limits.buffer_bytes) + ": is too small; at least " +
                                    std::to_string(least_bytes) + " bytes are needed");
}

void stop_if_signalled(const WorkLimits& limits) {
  const int signal = limits.signal ? limits.signal() : 0;
  if (signal != 0) throw stopped_by(signal);
}

Error stopped_by(int signal) {
  const char* name = ::sigabbrev_np(signal);
  return {static_cast<ErrorCode>(128 + signal), "stopped by SIG" + std::string(name != nullptr ? name : std::to_string(signal)) +
                                                    "; the same command does it again, a merge from where it stopped"};
}

}  // namespace unshard
