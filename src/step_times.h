// How long a rank spends in each step of a command.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace unshard {

[[nodiscard]] inline double seconds_of(std::uint64_t ns) {
  return static_cast<double>(ns) * 1e-9;
}

struct StepTime {
  std::string step;
  std::uint64_t ns = 0;
};

class StepTimes {
 public:
  /// Local. The step before has ended, this one begins. A step that is entered again goes on counting where it was.
  void enter(const std::string& step);
  /// Local. The current step has ended; time that passes before the next one counts nowhere.
  void leave();
  /// In the order in which they were first entered.
  [[nodiscard]] const std::vector<StepTime>& steps() const { return steps_; }
  [[nodiscard]] std::uint64_t total_ns() const;

 private:
  using Clock = std::chrono::steady_clock;
  std::vector<StepTime> steps_;
  std::size_t current_ = none;
  Clock::time_point began_;
  static constexpr std::size_t none = static_cast<std::size_t>(-1);
};

}  // namespace unshard
