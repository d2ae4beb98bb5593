#include "rank_figures.h"

#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <cstdio>

#include "progress.h"
#include "unshard/agree.h"
#include "unshard/error.h"
#include "wire.h"

namespace unshard {
namespace {

/// Every number of the figures, in one order for both directions.
template <class Figures, class Visit>
void for_each_number(Figures& figures, Visit&& visit) {
  for (auto* number : {&figures.read_bytes, &figures.exchanged_bytes, &figures.written_bytes, &figures.messages, &figures.opens,
                       &figures.peak_rss_bytes, &figures.read_ns, &figures.exchange_ns, &figures.write_ns, &figures.busy_ns})
    visit(*number);
}

std::uint64_t peak_rss_bytes() {
  rusage usage{};
  if (getrusage(RUSAGE_SELF, &usage) != 0) return 0;
  return static_cast<std::uint64_t>(usage.ru_maxrss) * 1024;
}

Bytes encode(const RankFigures& figures) {
  WireWriter out;
  for_each_number(figures, [&](std::uint64_t number) { out.number(number); });
  for (const StepTime& time : figures.steps) {
    out.text(time.step);
    out.number(time.ns);
  }
  return out.take();
}

RankFigures decode(const Bytes& bytes) {
  RankFigures figures;
  WireReader in(bytes);
  for_each_number(figures, [&](std::uint64_t& number) { number = in.number(); });
  while (!in.at_end()) {
    StepTime time;
    time.step = in.text();
    time.ns = in.number();
    figures.steps.push_back(std::move(time));
  }
  return figures;
}

std::string seconds_text(std::uint64_t ns) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.3f", seconds_of(ns));
  return text.data();
}

}  // namespace

std::vector<RankFigures> gather_figures(Comm& comm, const FileSystem& files, const MoveReport& moved, const StepTimes& times) {
  RankFigures mine;
  mine.read_bytes = moved.read_bytes;
  mine.exchanged_bytes = moved.exchanged_bytes;
  mine.written_bytes = moved.written_bytes;
  mine.messages = moved.messages;
  mine.opens = files.counters().opens;
  mine.peak_rss_bytes = peak_rss_bytes();
  mine.read_ns = moved.read_ns;
  mine.exchange_ns = moved.exchange_ns;
  mine.write_ns = moved.write_ns;
  mine.busy_ns = moved.busy_ns;
  mine.steps = times.steps();
  std::vector<RankFigures> all;
  for (const Bytes& bytes : comm.gather(encode(mine), 0)) {
    all.push_back(decode(bytes));
    all.back().host = comm.host_of(static_cast<int>(all.size()) - 1);
  }
  return all;
}

std::size_t slowest_rank(const std::vector<RankFigures>& figures) {
  const auto slowest =
      std::max_element(figures.begin(), figures.end(), [](const RankFigures& a, const RankFigures& b) { return a.busy_ns < b.busy_ns; });
  return static_cast<std::size_t>(slowest - figures.begin());
}

std::string summary_line(const std::vector<RankFigures>& figures, std::uint64_t total_ns) {
  std::uint64_t bytes = 0;
  for (const RankFigures& rank : figures) bytes += rank.written_bytes;
  const double speed = total_ns == 0 ? 0 : static_cast<double>(bytes) / seconds_of(total_ns);
  const std::size_t slowest = slowest_rank(figures);
  return "Merged " + std::to_string(bytes) + " bytes in " + seconds_text(total_ns) + " s, " + short_bytes(speed) + "/s; slowest rank " +
         std::to_string(slowest) + " on " + printable(figures[slowest].host) + " (busy for " + seconds_text(figures[slowest].busy_ns) +
         " s)";
}

std::vector<std::string> rank_lines(const std::vector<RankFigures>& figures) {
  std::vector<std::string> lines;
  for (std::size_t rank = 0; rank < figures.size(); ++rank) {
    const RankFigures& row = figures[rank];
    std::string line = "rank " + std::to_string(rank) + " on " + printable(row.host) + ": read " + std::to_string(row.read_bytes) +
                       ", exchanged " + std::to_string(row.exchanged_bytes) + ", wrote " + std::to_string(row.written_bytes) +
                       " bytes; peak memory " + std::to_string(row.peak_rss_bytes) + " bytes; " + std::to_string(row.opens) +
                       " files opened; seconds:";
    for (const StepTime& time : row.steps) {
      line += " " + time.step + " " + seconds_text(time.ns);
      if (time.step == "move")
        line += " (busy " + seconds_text(row.busy_ns) + "; of all threads: read " + seconds_text(row.read_ns) + ", exchange " +
                seconds_text(row.exchange_ns) + ", write " + seconds_text(row.write_ns) + ")";
    }
    lines.push_back(std::move(line));
  }
  return lines;
}

}  // namespace unshard
