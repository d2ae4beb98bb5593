// A loop whose steps run on the threads of a rank.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

namespace unshard {

/// Local. Starts threads beside this one until there are `count` with it, or the system allows no more.
template <class Work>
void start_threads(std::vector<std::jthread>& others, std::size_t count, const Work& work) {
  try {
    others.reserve(count);
    for (std::size_t i = 1; i < count; ++i) others.emplace_back(work);
  } catch (const std::system_error&) {  // a limit on processes or memory
  }
}

/// Local. Calls work(i) for i = 0 … count - 1, in this order, on at most `threads` threads (this one among them; fewer where there may be
/// no more). The first exception ends the loop after the steps that have begun, and is thrown here.
template <class Work>
void loop_on_threads(std::size_t count, std::size_t threads, const Work& work) {
  std::atomic<std::size_t> next{0};
  std::mutex mutex;
  std::exception_ptr failure;
  const auto run = [&] {
    try {
      for (std::size_t i = next++; i < count; i = next++) work(i);
    } catch (...) {
      const std::lock_guard lock(mutex);
      if (!failure) failure = std::current_exception();
      next = count;
    }
  };
  {
    std::vector<std::jthread> others;
    start_threads(others, std::min(threads, count), run);
    run();
  }
  if (failure) std::rethrow_exception(failure);
}

}  // namespace unshard
