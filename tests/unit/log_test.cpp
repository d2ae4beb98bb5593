// Lines for a person on stderr, data on stdout.
#include "unshard/log.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <pty.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <string>
#include <thread>

#include "progress.h"

namespace unshard {
namespace {

/// What the log prints: stderr, then "|", then stdout.
std::string printed(int rank, Verbosity verbosity) {
  testing::internal::CaptureStderr();
  testing::internal::CaptureStdout();
  const auto log = make_log(rank, verbosity);
  log->line("line");
  log->warning("careful");
  log->detail("detail");
  log->data("{}");
  return testing::internal::GetCapturedStderr() + "|" + testing::internal::GetCapturedStdout();
}

TEST(Log, ShowsWhatWasAskedFor) {
  EXPECT_EQ(printed(0, Verbosity::normal), "line\nwarning: careful\n|{}\n");
  EXPECT_EQ(printed(0, Verbosity::verbose), "line\nwarning: careful\ndetail\n|{}\n");
  EXPECT_EQ(printed(0, Verbosity::quiet), "|{}\n");
}

TEST(Log, OfOtherRanksIsSilent) {
  EXPECT_EQ(printed(1, Verbosity::verbose), "|");
}

TEST(Log, GivesOneProgressLineForAQuickStepWithoutATerminal) {
  testing::internal::CaptureStderr();
  const auto log = make_log(0, Verbosity::normal);
  log->begin_progress("Writing", 1000);
  for (int i = 0; i < 10; ++i) log->add_progress(100);
  log->end_progress();
  log->end_progress();
  const std::string text = testing::internal::GetCapturedStderr();
  EXPECT_EQ(text.substr(0, text.find(',')), "Writing: 100 % of 1000 bytes");
  EXPECT_EQ(text.find('\n'), text.size() - 1);
  EXPECT_EQ(text.find('\r'), std::string::npos);
}

/// What `work` writes to stderr while that is a terminal.
std::string shown_on_terminal(const std::function<void()>& work) {
  int screen = -1, terminal = -1;
  EXPECT_EQ(openpty(&screen, &terminal, nullptr, nullptr, nullptr), 0);
  const int stderr_before = dup(STDERR_FILENO);
  dup2(terminal, STDERR_FILENO);
  work();
  dup2(stderr_before, STDERR_FILENO);
  close(stderr_before);
  std::string shown;
  std::array<char, 4096> text{};
  for (pollfd ready{screen, POLLIN, 0}; poll(&ready, 1, 200) == 1;) {  // the kernel hands it over in pieces
    const ssize_t count = read(screen, text.data(), text.size());
    if (count <= 0) break;
    shown.append(text.data(), static_cast<std::size_t>(count));
  }
  close(terminal);
  close(screen);
  return shown;
}

TEST(Log, DrawsABarOnATerminalAndTakesItAwayBeforeALine) {
  setenv("TERM", "xterm", 1);
  const std::string text = shown_on_terminal([] {
    const auto log = make_log(0, Verbosity::normal);
    log->begin_progress("Writing", 1000);
    std::this_thread::sleep_for(std::chrono::milliseconds(120));
    log->add_progress(500);
    log->line("line");
    std::this_thread::sleep_for(std::chrono::milliseconds(120));
    log->add_progress(250);  // and then the step fails
  });
  EXPECT_EQ(text.find("\rWriting [############............] 50 %"), 0U) << text;
  EXPECT_NE(text.find("\r\x1b[Kline\r\n\rWriting [##################......] 75 %"), std::string::npos) << text;
  EXPECT_EQ(text.rfind("\r\x1b[K"), text.size() - 4) << text;
}

TEST(Progress, StatesSpeedAndTimeLeft) {
  EXPECT_EQ(progress_line({"Writing", 1'000'000, 2'000'000, 1.0}), "Writing: 50 % of 2000000 bytes, 1.00 MB/s, 0:01 left");
  EXPECT_EQ(progress_line({"Writing", 10, 7'210 * 10, 1.0}), "Writing: 0 % of 72100 bytes, 10 B/s, 2:00:09 left");
  EXPECT_EQ(progress_line({"Writing", 0, 100, 1.0}), "Writing: 0 % of 100 bytes, 0 B/s");
  EXPECT_EQ(progress_line({"Writing", 0, 0, 0.0}), "Writing: 100 % of 0 bytes, 0 B/s");
}

TEST(Progress, BarFitsIntoATerminal) {
  EXPECT_EQ(progress_bar({"Writing", 1'000'000, 2'000'000, 1.0}), "Writing [############............] 50 %, 1.00 MB/s, 0:01 left");
  EXPECT_LT(progress_bar({"A very long name of a step indeed", 1, 1'000'000'000'000'000'000, 100.0}).size(), 80U);
}

TEST(ShortBytes, HasThreeDigits) {
  EXPECT_EQ(short_bytes(0), "0 B");
  EXPECT_EQ(short_bytes(999), "999 B");
  EXPECT_EQ(short_bytes(999.9), "1.00 kB");
  EXPECT_EQ(short_bytes(12'345), "12.3 kB");
  EXPECT_EQ(short_bytes(123'456'789), "123 MB");
}

}  // namespace
}  // namespace unshard
