// The world of ranks that are threads of one process: who runs, which messages are under way, who meets in which collective call.
//
// One rank has the turn; all others wait. A rank gives the turn away at every call, to a rank that can go on, drawn with the seed. So a
// schedule can be repeated, and when no rank can go on that is a deadlock, known at once.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "unshard/comm.h"
#include "unshard/in_process_comm.h"

namespace unshard {

/// Thrown in every rank at its next call once the run has failed, to end its thread.
struct Stopped {};

/// A collective call that ranks have entered: what each of them brought.
struct Meeting {
  std::string call;  ///< with its root: all ranks must make the same
  std::vector<std::vector<Bytes>> brought;
  std::size_t arrived = 0;
  bool complete = false;
};

/// The ranks of one communicator.
struct RankGroup {
  std::vector<int> members;  ///< world ranks, by rank
  std::shared_ptr<Meeting> meeting;
  std::uint64_t splits = 0;
};

/// One side of a message. Ranks are those of the world.
struct InProcessPost {
  const RankGroup* group = nullptr;
  int from = 0, to = 0, tag = 0;
  bool sends = false;
  const std::byte* source = nullptr;
  std::byte* destination = nullptr;
  std::size_t size = 0;
  bool done = false;
};

class World {
 public:
  World(int ranks, const InProcessOptions& options);

  // The life of a rank's thread.
  void begin(int rank);
  void end(int rank, const std::optional<std::string>& thrown);
  void run() { give_first_turn(); }
  /// After all threads have ended: why the run failed, if it did.
  [[nodiscard]] std::optional<std::string> failure() const { return failure_; }
  void report_messages_left();

  [[nodiscard]] RankGroup& everyone() { return *groups_[{nullptr, 0, 0}]; }
  [[nodiscard]] const InProcessOptions& options() const { return options_; }

  // Calls of the rank that has the turn.
  [[nodiscard]] std::shared_ptr<Meeting> meet(RankGroup& group, int rank, const std::string& call, std::vector<Bytes> brought);
  [[nodiscard]] RankGroup& split(RankGroup& group, int rank, int color);
  void post(int rank, const std::shared_ptr<InProcessPost>& post);
  [[nodiscard]] bool test(int rank, const InProcessPost& post);
  void wait(int rank, const InProcessPost& post);
  void drop(int rank, const InProcessPost& post) noexcept;

 private:
  struct Rank {
    bool ended = false;
    bool in_collective = false;
    std::string state = "has not begun";
    std::function<bool()> can_go_on;
    std::condition_variable turn;
  };
  struct Pair {
    std::shared_ptr<InProcessPost> send, receive;
    std::uint64_t due = 0;  ///< the tick at which it arrives at the earliest
  };
  using Lock = std::unique_lock<std::mutex>;

  void give_first_turn();
  void block(Lock& lock, int rank, const std::string& state, std::function<bool()> can_go_on);
  void pass_turn(Lock& lock, int rank);
  [[nodiscard]] std::optional<int> choose();
  [[nodiscard]] bool deliver_due();
  void fail(const std::string& text);
  void stop_if_failed() const;
  void note_progress(int rank);
  [[nodiscard]] std::string everyones_state() const;

  InProcessOptions options_;
  std::mutex mutex_;
  std::mt19937_64 random_;
  std::vector<std::unique_ptr<Rank>> ranks_;
  std::optional<int> turn_;
  std::uint64_t tick_ = 0;
  std::chrono::steady_clock::time_point last_progress_ = std::chrono::steady_clock::now();
  std::vector<std::shared_ptr<InProcessPost>> unmatched_;
  std::vector<Pair> under_way_;
  std::map<std::tuple<const RankGroup*, std::uint64_t, int>, std::unique_ptr<RankGroup>> groups_;
  std::optional<std::string> failure_;
};

}  // namespace unshard
