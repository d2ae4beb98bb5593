#include "step_times.h"

#include <algorithm>
#include <numeric>

namespace unshard {

void StepTimes::enter(const std::string& step) {
  leave();
  const auto found = std::find_if(steps_.begin(), steps_.end(), [&](const StepTime& time) { return time.step == step; });
  current_ = static_cast<std::size_t>(found - steps_.begin());
  if (found == steps_.end()) steps_.push_back({step, 0});
  began_ = Clock::now();
}

void StepTimes::leave() {
  if (current_ == none) return;
  steps_[current_].ns += static_cast<std::uint64_t>(std::chrono::nanoseconds(Clock::now() - began_).count());
  current_ = none;
}

std::uint64_t StepTimes::total_ns() const {
  return std::accumulate(steps_.begin(), steps_.end(), std::uint64_t{0},
                         [](std::uint64_t sum, const StepTime& time) { return sum + time.ns; });
}

}  // namespace unshard
