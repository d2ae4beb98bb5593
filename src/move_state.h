// What the two ways of moving (direct.h, rounds.h) have in common: the values that a move is made from, its memory, and how ranks stop
// together.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "assemble.h"
#include "extents.h"
#include "fetch.h"
#include "rank_places.h"
#include "settle.h"
#include "unshard/move.h"

namespace unshard {

/// How --buffer-size is divided. Sums of what a rank can use at once never exceed it.
struct Budget {
  std::size_t threads = 1;          ///< as many as there is memory for
  std::uint64_t scratch_bytes = 0;  ///< of each thread, for fetch()
  PieceSizes piece;                 ///< piece.most_bytes bounds the dense buffer of each thread too
  std::uint64_t send_bytes = 0;     ///< rounds: most that a reader sends in one round; there are two such buffers
  std::uint64_t work_bytes = 0;     ///< rounds: most for the work areas of one round together
};

/// What computing needs besides: of each thread the tiles, and of each piece a work area of at least so much. 0 when nothing is computed.
struct WorkNeeds {
  std::uint64_t tile_bytes = 0;
  std::uint64_t least_bytes = 0;
};
[[nodiscard]] WorkNeeds work_needs(const Targets& targets);

/// Local, pure. For threads that each make and write pieces: scratch, dense and output buffer.
[[nodiscard]] Budget direct_budget(std::uint64_t buffer_bytes, int threads, const WorkNeeds& work = {});
/// Local, pure. For rounds of `step_bytes`: two steps of output, one received, scratch and dense buffer of each thread, a buffer of the one
/// that settles, the rest for sending.
[[nodiscard]] Budget rounds_budget(std::uint64_t buffer_bytes, int threads, std::uint64_t step_bytes, const WorkNeeds& work = {});

/// Local, pure. Whether move() goes in rounds: home ranks read, or some file is written collectively.
[[nodiscard]] bool needs_rounds(const Plan& plan, const RankPlaces& places, const MoveOptions& options);

/// Local, pure; the same on every rank. Whether the ranks of some group write its file by collective calls.
[[nodiscard]] bool writes_some_collectively(const Plan& plan, const RankPlaces& places, IoMode io);

/// What the steps of a plan may need in one round, and what they do need at most: more.
struct StepLimit {
  std::uint64_t bytes = 0, needed = 0;
};
/// Local, pure. Plan::step_bytes with which they will need no more, or not much; never longer than before. Throws Error(usage) naming the
/// buffer size that is needed when steps can't be shorter.
[[nodiscard]] std::uint64_t shorter_step(const Plan& plan, const StepLimit& limit, std::uint64_t buffer_bytes);

/// What is counted while threads work.
struct Counters {
  std::atomic<std::uint64_t> read_bytes{0}, messages{0}, exchanged_bytes{0}, written_bytes{0};
  std::atomic<std::uint64_t> read_ns{0}, exchange_ns{0}, write_ns{0};
  std::atomic<std::uint64_t> not_reported_bytes{0};  ///< written since progress was last told
};

/// Adds the time from its construction to its destruction.
class Stopwatch {
 public:
  explicit Stopwatch(std::atomic<std::uint64_t>& total_ns) : total_ns_(total_ns), begin_(std::chrono::steady_clock::now()) {}
  ~Stopwatch() { total_ns_ += static_cast<std::uint64_t>(std::chrono::nanoseconds(std::chrono::steady_clock::now() - begin_).count()); }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

 private:
  std::atomic<std::uint64_t>& total_ns_;
  std::chrono::steady_clock::time_point begin_;
};

/// One move of one rank. Refers to what move() was given.
struct MoveState {
  Comm& comm;
  FileCache& sources;
  const Source& source;
  const Plan& plan;
  const Assembler& assembler;
  FileSystem& target_files;
  const std::string& folder;
  const MoveOptions& options;
  WorkNeeds work;
  ExtentBook book;
  Settler settler;
  Counters counters;
  std::uint64_t busy_ns = 0;   ///< main thread only
  std::optional<Error> error;  ///< the first of this rank; main thread only

  /// Where output file `file` grows.
  [[nodiscard]] std::string path_of(std::uint32_t file) const;
  /// Keeps the first error.
  void keep(std::optional<Error> other);
  /// Collective, main thread. Tells the user of the bytes that all ranks have written since the last call.
  void report_progress();
};

/// What a rank says of itself when ranks compare how they are.
enum class Standing : std::uint8_t { done, working, failed };

/// Collective, now and then; tells of progress too. Whether all ranks are done, or all must stop because one has failed or got a signal
/// (the largest number of all is kept in `signal`).
struct Common {
  bool all_done = false, must_stop = false;
  int signal = 0;
};
[[nodiscard]] Common compare_standing(MoveState& state, Standing mine);

/// Collective. The end of a move, or of a part of it: closes the output files, of which the caller has none open any more; throws the same
/// Error on every rank if any has failed or `signal` is not 0.
void agree_on_end(MoveState& state, int signal);

}  // namespace unshard
