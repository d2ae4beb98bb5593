// Who writes what, and when: segments are dealt to ranks in waves, in proportion to what they cost: their bytes, where those that are
// computed count more (Segment::cost). Shares, rooms and weights below are such costs.
//
// With at least as many files as ranks, whole files come first (largest first, each to the rank that has least), as long as no rank gets
// more than its share. What is left is shared: in each wave the ranks form one group for each file, in proportion to the bytes left, and
// every rank writes the same part of what it may still write. The file that is finished first ends the wave; the next wave starts with new
// groups. So all ranks are busy in every wave, and the last wave ends everything as soon as that leaves no rank more than a few percent
// above its share.
//
// All of this happens within a *pool* of ranks: all that write, or (one_node_per_file) those of one node, which gets whole files. Pools
// know nothing of each other; their waves of one number happen at the same time.
#include <algorithm>
#include <map>
#include <numeric>
#include <optional>
#include <queue>

#include "plan_parts.h"
#include "unshard/error.h"

namespace unshard {
namespace {

__extension__ using Wide = unsigned __int128;

/// value * numerator / denominator, rounded down; the result must fit.
std::uint64_t scaled(std::uint64_t value, std::uint64_t numerator, std::uint64_t denominator) {
  return static_cast<std::uint64_t>(Wide{value} * numerator / denominator);
}

/// The segments of one file, laid end to end as one range of costs (holes left out), and how far it is dealt.
class FileShare {
 public:
  void append(const Segment& segment) {
    segments_.push_back(segment);
    starts_.push_back(cost_);
    cost_ += (segment.end - segment.begin) * segment.cost;
  }
  [[nodiscard]] std::uint32_t number() const { return segments_.front().file; }
  [[nodiscard]] std::uint64_t cost() const { return cost_; }
  [[nodiscard]] std::uint64_t left() const { return cost_ - dealt_; }
  [[nodiscard]] std::uint64_t dealt() const { return dealt_; }

  /// The nearest place to `at` where ranks may meet: a multiple of `boundary_bytes` in the file, or the edge of a hole.
  [[nodiscard]] std::uint64_t snapped(std::uint64_t at, std::uint64_t boundary_bytes) const {
    if (at >= cost_) return cost_;
    const std::size_t i = segment_at(at);
    const bool behind_hole = i == 0 || segments_[i - 1].end != segments_[i].begin;
    if (behind_hole && at == starts_[i]) return at;
    const std::uint64_t offset = segments_[i].begin + (at - starts_[i]) / segments_[i].cost;
    const std::uint64_t down = offset - offset % boundary_bytes;
    return place_of(offset - down < boundary_bytes / 2 ? down : down + boundary_bytes, i);
  }

  /// Gives everything up to `end`, a place that snapped() gave, to one rank, as runs of `wave`.
  void deal_until(std::uint64_t end, std::uint32_t wave, std::vector<Run>& runs) {
    while (dealt_ < end) {
      const std::size_t i = segment_at(dealt_);
      const Segment& segment = segments_[i];
      const std::uint64_t begin = segment.begin + (dealt_ - starts_[i]) / segment.cost;
      const std::uint64_t length = std::min(segment.end - begin, (end - dealt_) / segment.cost);
      if (!runs.empty() && runs.back().file == number() && runs.back().wave == wave && runs.back().end == begin) {
        runs.back().end += length;
      } else {
        runs.push_back({number(), wave, begin, begin + length});
      }
      dealt_ += length * segment.cost;
    }
  }

 private:
  [[nodiscard]] std::size_t segment_at(std::uint64_t at) const {
    return static_cast<std::size_t>(std::upper_bound(starts_.begin(), starts_.end(), at) - starts_.begin() - 1);
  }

  /// The place of a byte of the file, which lies in segment `i` or near it; in a hole, of an edge of that.
  [[nodiscard]] std::uint64_t place_of(std::uint64_t offset, std::size_t i) const {
    while (i + 1 < segments_.size() && segments_[i + 1].begin <= offset) ++i;
    while (i > 0 && segments_[i].begin > offset) --i;
    const Segment& segment = segments_[i];
    return starts_[i] + (std::clamp(offset, segment.begin, segment.end) - segment.begin) * segment.cost;
  }

  std::vector<Segment> segments_;
  std::vector<std::uint64_t> starts_;
  std::uint64_t cost_ = 0;
  std::uint64_t dealt_ = 0;
};

/// Some of the ranks, on their way to writing one file in one wave.
struct Team {
  FileShare* file = nullptr;
  std::vector<std::uint32_t> ranks;
  std::uint64_t weight = 0;  ///< what the ranks may still write together
};

/// Ranks that write files together.
struct Pool {
  std::vector<std::uint32_t> ranks;  ///< ascending
  std::vector<FileShare> files;
  std::uint64_t cost = 0;  ///< of the files
};

/// Deals the files of one pool to its ranks. Those are numbered here by their place in the pool.
class Dealer {
 public:
  Dealer(Pool& pool, Plan& plan) : plan_(plan), ranks_(pool.ranks), files_(pool.files), given_(pool.ranks.size()) {
    share_ = (pool.cost + given_.size() - 1) / given_.size();
    most_ = share_ + std::max(share_ / 25, plan.boundary_bytes);
  }

  /// Returns the number of waves.
  std::uint32_t deal() {
    if (files_.size() >= given_.size()) deal_whole_files();
    while (deal_wave()) {
    }
    return wave_;
  }

 private:
  void give(FileShare& file, std::uint64_t end, std::uint32_t place) {
    given_[place] += end - file.dealt();
    file.deal_until(end, wave_, plan_.runs[ranks_[place]]);
  }

  void deal_whole_files() {
    std::vector<std::size_t> order(files_.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return files_[a].cost() > files_[b].cost(); });
    std::vector<std::optional<std::uint32_t>> owner(files_.size());
    using Load = std::pair<std::uint64_t, std::uint32_t>;
    std::priority_queue<Load, std::vector<Load>, std::greater<>> least;
    for (std::uint32_t rank = 0; rank < given_.size(); ++rank) least.emplace(0, rank);
    for (const std::size_t file : order) {
      const auto [load, rank] = least.top();
      if (load + files_[file].cost() > most_) continue;
      least.pop();
      least.emplace(load + files_[file].cost(), rank);
      owner[file] = rank;
    }
    bool any = false;
    for (std::size_t file = 0; file < files_.size(); ++file) {
      if (!owner[file]) continue;
      give(files_[file], files_[file].cost(), *owner[file]);
      plan_.groups.push_back({files_[file].number(), wave_, {ranks_[*owner[file]]}});
      any = true;
    }
    if (any) ++wave_;
  }

  /// False when there is nothing left.
  bool deal_wave() {
    std::vector<Team> teams = form_teams();
    if (teams.empty()) return false;
    const bool finish = std::all_of(teams.begin(), teams.end(), [&](const Team& team) { return can_finish(team); });
    // The team that is done first; what it has, by what it may write, is the part that every team writes in this wave.
    const Team& first = *std::min_element(teams.begin(), teams.end(), [](const Team& a, const Team& b) {
      return Wide{a.file->left()} * b.weight < Wide{b.file->left()} * a.weight;
    });
    const std::uint64_t part = first.file->left(), of = first.weight;
    for (Team& team : teams) {
      const bool whole = finish || &team == &first;
      deal_to_team(team, whole ? team.file->left() : std::min(scaled(part, team.weight, of), team.file->left()));
    }
    ++wave_;
    return true;
  }

  /// One team for each unfinished file (the largest, when ranks are fewer), of neighbouring ranks, in the order of files.
  std::vector<Team> form_teams() {
    std::vector<FileShare*> open;
    for (FileShare& file : files_) {
      if (file.left() != 0) open.push_back(&file);
    }
    if (open.empty()) return {};
    std::vector<std::uint32_t> ranks = ranks_with_room();
    if (open.size() > ranks.size()) {
      std::stable_sort(open.begin(), open.end(), [](const FileShare* a, const FileShare* b) { return a->left() > b->left(); });
      open.resize(ranks.size());
      std::sort(open.begin(), open.end(), [](const FileShare* a, const FileShare* b) { return a->number() < b->number(); });
    }
    const std::vector<std::size_t> counts = ranks_by_file(open, ranks.size());
    std::vector<Team> teams;
    auto next = ranks.begin();
    for (std::size_t i = 0; i < open.size(); ++i) {
      const auto last = next + static_cast<std::ptrdiff_t>(counts[i]);
      teams.push_back({open[i], {next, last}, 0});
      for (const std::uint32_t rank : teams.back().ranks) teams.back().weight += weight_of(rank);
      next = last;
    }
    return teams;
  }

  /// Ranks that may still write enough to be worth a boundary; all of them, when there are none.
  [[nodiscard]] std::vector<std::uint32_t> ranks_with_room() const {
    std::vector<std::uint32_t> with_room, all;
    for (std::uint32_t rank = 0; rank < given_.size(); ++rank) {
      all.push_back(rank);
      if (given_[rank] + plan_.boundary_bytes <= share_) with_room.push_back(rank);
    }
    return with_room.empty() ? all : with_room;
  }

  [[nodiscard]] std::uint64_t weight_of(std::uint32_t rank) const { return given_[rank] < share_ ? share_ - given_[rank] : 1; }

  /// One rank for each file; each further one where a rank has most to do.
  static std::vector<std::size_t> ranks_by_file(const std::vector<FileShare*>& open, std::size_t ranks) {
    std::vector<std::size_t> counts(open.size(), 1);
    const auto less_to_do = [&](std::size_t a, std::size_t b) {
      const Wide left = Wide{open[a]->left()} * counts[b], right = Wide{open[b]->left()} * counts[a];
      return left != right ? left < right : a > b;
    };
    std::priority_queue<std::size_t, std::vector<std::size_t>, decltype(less_to_do)> most(less_to_do);
    for (std::size_t i = 0; i < open.size(); ++i) most.push(i);
    for (std::size_t given = open.size(); given < ranks; ++given) {
      const std::size_t file = most.top();
      most.pop();
      ++counts[file];
      most.push(file);
    }
    return counts;
  }

  /// Whether the team's ranks may write all that is left of the file.
  [[nodiscard]] bool can_finish(const Team& team) const {
    if (files_.size() == 1) return true;
    return std::all_of(team.ranks.begin(), team.ranks.end(),
                       [&](std::uint32_t rank) { return given_[rank] + scaled(team.file->left(), weight_of(rank), team.weight) <= most_; });
  }

  void deal_to_team(Team& team, std::uint64_t cost) {
    const std::uint64_t start = team.file->dealt(), end = start + cost;
    std::vector<std::uint64_t> cuts;  // before anything is given: weights change with it
    std::uint64_t weight = 0;
    for (const std::uint32_t rank : team.ranks) {
      weight += weight_of(rank);
      const std::uint64_t cut = team.file->snapped(start + scaled(cost, weight, team.weight), plan_.boundary_bytes);
      cuts.push_back(std::max(cut, cuts.empty() ? start : cuts.back()));  // an edge of a hole may lie before a boundary beyond the hole
    }
    if (end == team.file->cost()) cuts.back() = end;
    if (cost < plan_.boundary_bytes) cuts.assign(cuts.size(), cuts.back());  // not worth a boundary: the first rank has it
    Group group{team.file->number(), wave_, {}};
    for (std::size_t i = 0; i < cuts.size(); ++i) {
      if (cuts[i] == team.file->dealt()) continue;
      give(*team.file, cuts[i], team.ranks[i]);
      group.ranks.push_back(ranks_[team.ranks[i]]);
    }
    if (!group.ranks.empty()) plan_.groups.push_back(std::move(group));
  }

  Plan& plan_;
  const std::vector<std::uint32_t>& ranks_;
  std::vector<FileShare>& files_;
  std::vector<std::uint64_t> given_;  ///< cost by place
  std::uint64_t share_ = 0;           ///< of each rank
  std::uint64_t most_ = 0;            ///< what a rank may get in the end, to save a wave
  std::uint32_t wave_ = 0;
};

std::vector<FileShare> files_of(const std::vector<Segment>& segments) {
  std::vector<FileShare> files;
  for (const Segment& segment : segments) {
    if (files.empty() || files.back().number() != segment.file) files.emplace_back();
    files.back().append(segment);
  }
  return files;
}

/// The ranks that may write one file together.
std::vector<Pool> pools_of(const PlanOptions& options) {
  std::map<int, Pool> by_node;
  for (std::size_t rank = 0; rank < static_cast<std::size_t>(options.ranks); ++rank) {
    const int node = options.nodes.empty() ? 0 : options.nodes.at(rank);
    if (node != no_writer) by_node[options.one_node_per_file ? node : 0].ranks.push_back(static_cast<std::uint32_t>(rank));
  }
  if (by_node.empty()) throw Error(ErrorCode::internal, "plan: no rank can write");
  std::vector<Pool> pools;
  for (auto& [node, pool] : by_node) pools.push_back(std::move(pool));
  return pools;
}

/// Whole files, largest first, each to the pool whose ranks then have least.
void share_files(std::vector<FileShare> files, std::vector<Pool>& pools) {
  std::stable_sort(files.begin(), files.end(), [](const FileShare& a, const FileShare& b) { return a.cost() > b.cost(); });
  for (FileShare& file : files) {
    Pool& pool = *std::min_element(pools.begin(), pools.end(), [&](const Pool& a, const Pool& b) {
      return Wide{a.cost + file.cost()} * b.ranks.size() < Wide{b.cost + file.cost()} * a.ranks.size();
    });
    pool.cost += file.cost();
    pool.files.push_back(std::move(file));
  }
  for (Pool& pool : pools) {
    std::sort(pool.files.begin(), pool.files.end(), [](const FileShare& a, const FileShare& b) { return a.number() < b.number(); });
  }
}

}  // namespace

void deal_segments(const std::vector<Segment>& segments, const PlanOptions& options, Plan& plan) {
  plan.runs.assign(static_cast<std::size_t>(plan.ranks), {});
  std::vector<Pool> pools = pools_of(options);
  share_files(files_of(segments), pools);
  for (Pool& pool : pools) plan.wave_count = std::max(plan.wave_count, Dealer(pool, plan).deal());
  std::sort(plan.groups.begin(), plan.groups.end(),
            [](const Group& a, const Group& b) { return std::pair(a.wave, a.file) < std::pair(b.wave, b.file); });
}

}  // namespace unshard
