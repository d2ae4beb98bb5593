#include "unshard/log.h"

#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>

#include "progress.h"

namespace unshard {

namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::milliseconds between_bars{100};
constexpr std::chrono::seconds between_lines{5};

/// One call, so that lines of several processes don't mix. What can't be shown is lost: there is nobody to tell.
void write_to_stderr(const std::string& text) {
  std::size_t at = 0;
  while (at < text.size()) {
    const ssize_t count = ::write(STDERR_FILENO, text.data() + at, text.size() - at);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return;
    at += static_cast<std::size_t>(count);
  }
}

bool stderr_is_terminal() {
  const char* terminal = std::getenv("TERM");
  return isatty(STDERR_FILENO) != 0 && (terminal == nullptr || std::strcmp(terminal, "dumb") != 0);
}

class StreamLog final : public Log {
 public:
  explicit StreamLog(Verbosity verbosity) : verbosity_(verbosity), terminal_(stderr_is_terminal()) {}
  ~StreamLog() override {
    if (bar_shown_) write_to_stderr(erased());  // a step that failed; the error line comes next
  }

  void line(const std::string& text) override {
    if (verbosity_ != Verbosity::quiet) print(text);
  }
  void warning(const std::string& text) override {
    if (verbosity_ != Verbosity::quiet) print("warning: " + text);
  }
  void detail(const std::string& text) override {
    if (verbosity_ == Verbosity::verbose) print(text);
  }
  void data(const std::string& text) override;
  void begin_progress(const std::string& what, std::uint64_t total_bytes) override;
  void add_progress(std::uint64_t bytes) override;
  void end_progress() override;

 private:
  void print(const std::string& text) {
    const std::lock_guard lock(mutex_);
    write_to_stderr(erased() + text + "\n");
  }
  /// What takes a bar off the terminal.
  std::string erased() {
    const bool shown = bar_shown_;
    bar_shown_ = false;
    return shown ? "\r\x1b[K" : "";
  }
  void measure() { progress_.seconds = std::chrono::duration<double>(Clock::now() - began_).count(); }

  Verbosity verbosity_;
  bool terminal_;
  std::mutex mutex_;  // progress comes from an I/O thread
  bool under_way_ = false;
  bool bar_shown_ = false;
  Progress progress_;
  Clock::time_point began_, shown_;
};

/// A reader that has gone (`| head`) wants no more; every other failure stays in stdout's error flag, which main looks at.
void StreamLog::data(const std::string& text) {
  const std::lock_guard lock(mutex_);
  if (bar_shown_) write_to_stderr(erased());
  const bool written =
      std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fputc('\n', stdout) != EOF && std::fflush(stdout) == 0;
  if (!written && errno == EPIPE) std::clearerr(stdout);
}

void StreamLog::begin_progress(const std::string& what, std::uint64_t total_bytes) {
  const std::lock_guard lock(mutex_);
  under_way_ = true;
  progress_ = {.what = what, .total_bytes = total_bytes};
  began_ = shown_ = Clock::now();
}

void StreamLog::add_progress(std::uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  progress_.done_bytes += bytes;
  const Clock::time_point now = Clock::now();
  if (verbosity_ == Verbosity::quiet || now - shown_ < (terminal_ ? Clock::duration(between_bars) : Clock::duration(between_lines))) return;
  shown_ = now;
  measure();
  if (terminal_) {
    write_to_stderr("\r" + progress_bar(progress_) + "\x1b[K");
    bar_shown_ = true;
  } else {
    write_to_stderr(progress_line(progress_) + "\n");
  }
}

void StreamLog::end_progress() {
  const std::lock_guard lock(mutex_);
  if (!under_way_) return;
  under_way_ = false;
  if (verbosity_ == Verbosity::quiet) return;
  measure();
  write_to_stderr(erased() + progress_line(progress_) + "\n");
}

class NoLog final : public Log {
 public:
  void line(const std::string&) override {}
  void warning(const std::string&) override {}
  void detail(const std::string&) override {}
  void data(const std::string&) override {}
  void begin_progress(const std::string&, std::uint64_t) override {}
  void add_progress(std::uint64_t) override {}
  void end_progress() override {}
};

}  // namespace

std::unique_ptr<Log> make_log(int rank, Verbosity verbosity) {
  if (rank != 0) return std::make_unique<NoLog>();
  return std::make_unique<StreamLog>(verbosity);
}

}  // namespace unshard
