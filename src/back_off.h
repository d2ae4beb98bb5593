// Waiting without spinning: sleeps that grow from 5 microseconds to one millisecond.
#pragma once

#include <algorithm>
#include <chrono>
#include <thread>

namespace unshard {

class BackOff {
 public:
  void sleep() {
    std::this_thread::sleep_for(pause_);
    pause_ = std::min(pause_ * 2, std::chrono::microseconds(1000));
  }

 private:
  std::chrono::microseconds pause_{5};
};

}  // namespace unshard
