// The I/O threads of a rank. They never talk to other ranks: only the main thread does.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "unshard/error.h"

namespace unshard {

class Workers {
 public:
  using Task = std::function<void(std::size_t worker, std::size_t task)>;

  /// Whether a thread that gets work takes the core from the one that gave it.
  enum class Wakes : std::uint8_t {
    first,  ///< as the system likes it
    last,   ///< no: other ranks wait for the collective calls of the main thread, which would begin only when the threads have read
  };

  explicit Workers(std::size_t count, Wakes wakes = Wakes::first);
  ~Workers();  ///< waits for the batch
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;

  [[nodiscard]] std::size_t size() const { return threads_.size(); }

  /// Starts task 0 … count - 1 on whatever thread is free, in this order, and returns at once. There is one batch at a time. After a task
  /// has thrown, those that haven't begun are left out.
  void start(std::size_t count, Task task);

  /// Waits for the batch, at most so long. Returns whether it has ended.
  bool wait_for(std::chrono::milliseconds time);

  /// Waits for the batch. Returns the first error of a task.
  std::optional<Error> wait();

  /// For how long there was a batch with tasks that had not ended, so far.
  [[nodiscard]] std::uint64_t busy_ns();

 private:
  void run(std::size_t worker, Wakes wakes);

  std::mutex mutex_;
  std::condition_variable work_, done_;
  Task task_;
  std::size_t count_ = 0, next_ = 0, running_ = 0;
  std::optional<Error> error_;
  bool ends_ = false;
  std::chrono::steady_clock::time_point began_;
  std::chrono::nanoseconds busy_{0};
  std::vector<std::thread> threads_;
};

}  // namespace unshard
