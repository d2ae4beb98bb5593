// What each rank did and how long it took: for --verbose, for --json, and for the line at the end of a merge.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "step_times.h"
#include "unshard/comm.h"
#include "unshard/file_system.h"
#include "unshard/move.h"

namespace unshard {

struct RankFigures {
  std::string host;
  std::uint64_t read_bytes = 0, exchanged_bytes = 0, written_bytes = 0;  ///< of tensors
  std::uint64_t messages = 0;                                            ///< with bytes of tensors, received (unshard/move.h)
  std::uint64_t opens = 0;                                               ///< of files, by the whole command
  std::uint64_t peak_rss_bytes = 0;
  std::uint64_t read_ns = 0, exchange_ns = 0, write_ns = 0;  ///< of all I/O threads together, while tensors were moved
  std::uint64_t busy_ns = 0;                                 ///< as in MoveReport
  std::vector<StepTime> steps;                               ///< with what it waited for others in them
};

/// Collective. Those of all ranks, by rank, on rank 0; elsewhere none.
[[nodiscard]] std::vector<RankFigures> gather_figures(Comm& comm, const FileSystem& files, const MoveReport& moved, const StepTimes& times);

/// Local, pure. The rank that the others waited for: the one whose I/O threads had work for the longest time. `figures` is not empty.
[[nodiscard]] std::size_t slowest_rank(const std::vector<RankFigures>& figures);

/// Local, pure. `Merged 437014528 bytes in 3.68 s, 119 MB/s; slowest rank 1 on node2 (busy for 2.90 s)`.
[[nodiscard]] std::string summary_line(const std::vector<RankFigures>& figures, std::uint64_t total_ns);

/// Local, pure. One line for each rank.
[[nodiscard]] std::vector<std::string> rank_lines(const std::vector<RankFigures>& figures);

}  // namespace unshard
