#include "workers.h"

#include <sched.h>

#include <string>
#include <system_error>
#include <utility>

#include "unshard/agree.h"

namespace unshard {
namespace {

/// sched(7): a batch thread does not preempt when it wakes. What the user has set stays.
void wake_last() {
  const sched_param no_priority{};
  if (sched_getscheduler(0) == SCHED_OTHER) (void)sched_setscheduler(0, SCHED_BATCH, &no_priority);
}

}  // namespace

Workers::Workers(std::size_t count, Wakes wakes) {
  for (std::size_t worker = 0; worker < count; ++worker) {
    try {
      threads_.emplace_back([this, worker, wakes] { run(worker, wakes); });
    } catch (const std::system_error& error) {
      if (threads_.empty())
        throw Error(ErrorCode::io,
                    std::string("threads: none can be started: ") + error.what() + "; raise the limits (ulimit -u, ulimit -v)");
      break;  // a limit on threads: fewer do the work
    }
  }
}

Workers::~Workers() {
  (void)wait();
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  work_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void Workers::start(std::size_t count, Task task) {
  {
    const std::lock_guard lock(mutex_);
    task_ = std::move(task);
    count_ = count;
    next_ = 0;
    error_.reset();
    began_ = std::chrono::steady_clock::now();
  }
  work_.notify_all();
}

bool Workers::wait_for(std::chrono::milliseconds time) {
  std::unique_lock lock(mutex_);
  return done_.wait_for(lock, time, [&] { return next_ >= count_ && running_ == 0; });
}

std::optional<Error> Workers::wait() {
  std::unique_lock lock(mutex_);
  done_.wait(lock, [&] { return next_ >= count_ && running_ == 0; });
  return std::exchange(error_, std::nullopt);
}

std::uint64_t Workers::busy_ns() {
  const std::lock_guard lock(mutex_);
  return static_cast<std::uint64_t>(std::chrono::nanoseconds(busy_).count());
}

void Workers::run(std::size_t worker, Wakes wakes) {
  if (wakes == Wakes::last) wake_last();
  std::unique_lock lock(mutex_);
  while (true) {
    work_.wait(lock, [&] { return ends_ || next_ < count_; });
    if (next_ >= count_) return;
    const std::size_t task = next_++;
    ++running_;
    lock.unlock();
    std::optional<Error> error = attempt([&] { task_(worker, task); });
    lock.lock();
    --running_;
    if (error && !error_) {
      error_ = std::move(error);
      next_ = count_;
    }
    if (next_ < count_ || running_ > 0) continue;
    busy_ += std::chrono::steady_clock::now() - began_;
    done_.notify_all();
  }
}

}  // namespace unshard
