// Lines for a person on stderr, data on stdout.
#include "unshard/log.h"

#include <gtest/gtest.h>

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

TEST(Log, OfOtherRanksIsSilent) { EXPECT_EQ(printed(1, Verbosity::verbose), "|"); }

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
