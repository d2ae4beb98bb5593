#include "signals.h"

#include <signal.h>
#include <time.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <ctime>

namespace unshard {

namespace {

constexpr std::array watched = {SIGINT, SIGTERM, SIGUSR1};

// A handler can reach nothing but objects of static storage; these are the only ones in the program.
std::atomic<int> received = 0;
std::atomic<std::time_t> received_at = 0;
std::atomic<bool> ends_at_once = false;
std::atomic<bool> prints = false;
static_assert(std::atomic<int>::is_always_lock_free && std::atomic<bool>::is_always_lock_free &&
              std::atomic<std::time_t>::is_always_lock_free);

/// A launcher passes on what a whole process group has received already: that is one request, not two.
constexpr std::time_t same_request_seconds = 2;

[[noreturn]] void end_now(int number) {
  constexpr char line[] = "unshard: error: interrupted by a signal\n";
  if (prints) {
    const ssize_t count = ::write(STDERR_FILENO, line, sizeof line - 1);
    (void)count;  // nobody is left to tell
  }
  _exit(128 + number);
}

extern "C" void note_signal(int number) {
  int none = 0;
  struct timespec now {};
  clock_gettime(CLOCK_MONOTONIC, &now);
  const bool first = received.compare_exchange_strong(none, number);
  if (first) received_at = now.tv_sec;
  if (ends_at_once || (!first && now.tv_sec - received_at > same_request_seconds)) end_now(number);
}

void set_handler(int number, void (*handler)(int)) {
  struct sigaction action {};
  action.sa_handler = handler;
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  sigaction(number, &action, nullptr);
}

}  // namespace

void watch_signals(OnSignal reaction, bool speaks) {
  ends_at_once = reaction == OnSignal::end_at_once;
  prints = speaks;
  for (const int number : watched) set_handler(number, note_signal);
}

void fail_instead_of_dying() {
  set_handler(SIGPIPE, SIG_IGN);
  set_handler(SIGXFSZ, SIG_IGN);
}

void ignore_signals() {
  for (const int number : watched) set_handler(number, SIG_IGN);
}

int received_signal() {
  return received;
}

}  // namespace unshard
