#include "in_process_world.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace unshard {

namespace {

constexpr std::uint64_t longest_delay_ticks = 8;

std::string describe(const InProcessPost& post) {
  return "a message of " + std::to_string(post.size) + " bytes from rank " + std::to_string(post.from) + " to rank " +
         std::to_string(post.to) + ", tag " + std::to_string(post.tag);
}

bool fit(const InProcessPost& a, const InProcessPost& b) {
  return a.group == b.group && a.sends != b.sends && a.from == b.from && a.to == b.to && a.tag == b.tag;
}

}  // namespace

World::World(int ranks, const InProcessOptions& options) : options_(options), random_(options.seed) {
  auto group = std::make_unique<RankGroup>();
  for (int rank = 0; rank < ranks; ++rank) {
    ranks_.push_back(std::make_unique<Rank>());
    group->members.push_back(rank);
  }
  groups_[{nullptr, 0, 0}] = std::move(group);
}

void World::begin(int rank) {
  Lock lock(mutex_);
  ranks_[rank]->state = "is about to begin";
  ranks_[rank]->turn.wait(lock, [&] { return turn_ == rank || failure_; });
  stop_if_failed();
  note_progress(rank);
}

void World::give_first_turn() {
  const Lock lock(mutex_);
  turn_ = choose();
  if (turn_) ranks_[*turn_]->turn.notify_one();
}

void World::end(int rank, const std::optional<std::string>& thrown) {
  const Lock lock(mutex_);
  Rank& self = *ranks_[rank];
  self.ended = true;
  self.state = thrown ? "has thrown \"" + *thrown + "\"" : "has returned";
  if (failure_) return;
  turn_ = choose();
  if (turn_) {
    ranks_[*turn_]->turn.notify_one();
  } else if (!std::all_of(ranks_.begin(), ranks_.end(), [](const auto& other) { return other->ended; })) {
    fail("deadlock: " + everyones_state());
  }
}

void World::report_messages_left() {
  const Lock lock(mutex_);
  if (failure_ || (unmatched_.empty() && under_way_.empty())) return;
  const InProcessPost& left = unmatched_.empty() ? *under_way_.front().send : *unmatched_.front();
  fail(describe(left) + (left.sends ? " was never received" : " was never sent"));
}

std::shared_ptr<Meeting> World::meet(RankGroup& group, int rank, const std::string& call, std::vector<Bytes> brought) {
  Lock lock(mutex_);
  stop_if_failed();
  note_progress(rank);
  const auto self = std::find(group.members.begin(), group.members.end(), rank) - group.members.begin();
  if (!group.meeting) {
    group.meeting = std::make_shared<Meeting>();
    group.meeting->call = call;
    group.meeting->brought.resize(group.members.size());
  }
  const std::shared_ptr<Meeting> meeting = group.meeting;
  if (meeting->call != call) {
    fail("rank " + std::to_string(rank) + " calls " + call + " while other ranks are in " + meeting->call + ": " + everyones_state());
    throw Stopped{};
  }
  meeting->brought[self] = std::move(brought);
  ranks_[rank]->in_collective = true;
  if (++meeting->arrived == group.members.size()) {
    meeting->complete = true;
    group.meeting.reset();
    for (const int member : group.members) ranks_[member]->in_collective = false;
  }
  block(lock, rank, "waits in " + call, [meeting] { return meeting->complete; });
  return meeting;
}

RankGroup& World::split(RankGroup& group, int rank, int color) {
  const auto brought = reinterpret_cast<const std::byte*>(&color);
  const std::shared_ptr<Meeting> meeting = meet(group, rank, "split", {Bytes(brought, brought + sizeof color)});
  const Lock lock(mutex_);
  // Each member comes here once; the last one counts the split, so that all of them use the same key.
  std::unique_ptr<RankGroup>& made = groups_[{&group, group.splits, color}];
  if (!made) {
    made = std::make_unique<RankGroup>();
    for (std::size_t other = 0; other < group.members.size(); ++other) {
      int color_of_other = 0;
      std::memcpy(&color_of_other, meeting->brought[other][0].data(), sizeof color_of_other);
      if (color_of_other == color) made->members.push_back(group.members[other]);
    }
  }
  if (--meeting->arrived == 0) ++group.splits;
  return *made;
}

void World::post(int rank, const std::shared_ptr<InProcessPost>& post) {
  Lock lock(mutex_);
  stop_if_failed();
  note_progress(rank);
  const auto other = std::find_if(unmatched_.begin(), unmatched_.end(), [&](const auto& waiting) { return fit(*waiting, *post); });
  if (other == unmatched_.end()) {
    unmatched_.push_back(post);
  } else {
    const auto [send, receive] = post->sends ? std::pair(post, *other) : std::pair(*other, post);
    if (send->size != receive->size) {
      fail(describe(*send) + " is received into " + std::to_string(receive->size) + " bytes");
      throw Stopped{};
    }
    under_way_.push_back({send, receive, tick_ + random_() % (longest_delay_ticks + 1)});
    unmatched_.erase(other);
  }
  block(lock, rank, "runs", [] { return true; });
}

bool World::test(int rank, const InProcessPost& post) {
  Lock lock(mutex_);
  stop_if_failed();
  if (post.done) {
    note_progress(rank);
    return true;
  }
  const std::chrono::duration<double> idle = std::chrono::steady_clock::now() - last_progress_;
  Rank& self = *ranks_[rank];
  self.state = std::string("tests ") + describe(post);
  if (idle.count() > options_.deadline_seconds) {
    fail("deadlock: no progress for " + std::to_string(static_cast<int>(idle.count())) + " seconds: " + everyones_state());
    throw Stopped{};
  }
  self.can_go_on = [] { return true; };
  pass_turn(lock, rank);
  return post.done;
}

void World::wait(int rank, const InProcessPost& post) {
  Lock lock(mutex_);
  stop_if_failed();
  note_progress(rank);
  block(lock, rank, "waits for " + describe(post), [&post] { return post.done; });
}

void World::drop(int rank, const InProcessPost& post) noexcept {
  const Lock lock(mutex_);
  if (post.done || failure_) return;
  fail("rank " + std::to_string(rank) + " dropped " + describe(post) + ", before it had ended");
}

void World::block(Lock& lock, int rank, const std::string& state, std::function<bool()> can_go_on) {
  Rank& self = *ranks_[rank];
  self.state = state;
  self.can_go_on = std::move(can_go_on);
  pass_turn(lock, rank);
  note_progress(rank);
}

/// Gives the turn to a rank that can go on (this one, perhaps) and returns when this rank has it again.
void World::pass_turn(Lock& lock, int rank) {
  turn_ = choose();
  if (!turn_) {
    fail("deadlock: " + everyones_state());
    throw Stopped{};
  }
  if (turn_ == rank) return;
  ranks_[*turn_]->turn.notify_one();
  ranks_[rank]->turn.wait(lock, [&] { return turn_ == rank || failure_; });
  stop_if_failed();
}

std::optional<int> World::choose() {
  while (true) {
    ++tick_;
    const bool some_still_under_way = deliver_due();
    std::vector<int> able;
    for (int rank = 0; rank < static_cast<int>(ranks_.size()); ++rank) {
      const Rank& candidate = *ranks_[rank];
      if (!candidate.ended && (!candidate.can_go_on || candidate.can_go_on())) able.push_back(rank);
    }
    if (!able.empty()) return able[random_() % able.size()];
    if (!some_still_under_way) return std::nullopt;
  }
}

/// Copies the messages that are due and not held up by a rank in a collective call. Returns whether others will follow by themselves.
bool World::deliver_due() {
  bool will_follow = false;
  std::erase_if(under_way_, [&](const Pair& pair) {
    if (ranks_[pair.send->from]->in_collective || ranks_[pair.send->to]->in_collective) return false;
    if (pair.due > tick_) {
      will_follow = true;
      return false;
    }
    if (pair.send->size > 0) std::memcpy(pair.receive->destination, pair.send->source, pair.send->size);
    pair.send->done = pair.receive->done = true;
    last_progress_ = std::chrono::steady_clock::now();
    return true;
  });
  return will_follow;
}

void World::fail(const std::string& text) {
  if (!failure_) failure_ = text;
  for (const auto& rank : ranks_) rank->turn.notify_all();
}

void World::stop_if_failed() const {
  if (failure_) throw Stopped{};
}

void World::note_progress(int rank) {
  last_progress_ = std::chrono::steady_clock::now();
  ranks_[rank]->state = "runs";
}

std::string World::everyones_state() const {
  std::string text;
  for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
    text += (rank ? "; rank " : "rank ") + std::to_string(rank) + " " + ranks_[rank]->state;
  }
  return text;
}

}  // namespace unshard
