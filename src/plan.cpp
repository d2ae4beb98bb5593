// make_plan: what is written, who writes it, in how many rounds; and the check of the plan's own promise.
#include "unshard/plan.h"

#include <algorithm>
#include <utility>

#include "hash.h"
#include "plan_parts.h"
#include "unshard/error.h"

namespace unshard {
namespace {

/// The end of the step that begins at `begin`: after step_bytes, or a little before, at a multiple of the unit that divides step_bytes.
std::uint64_t step_end(const Plan& plan, const Run& run, std::uint64_t begin) {
  const std::uint64_t length = plan.step_bytes - begin % std::min(plan.step_bytes, plan.boundary_bytes);
  return run.end - begin <= length ? run.end : begin + length;
}

std::uint64_t step_count(const Plan& plan, const Run& run) {
  const std::uint64_t left = run.end - step_end(plan, run, run.begin);
  return 1 + left / plan.step_bytes + (left % plan.step_bytes != 0 ? 1 : 0);
}

/// Every byte of the segments in exactly one run.
void check_covered(const Plan& plan, const std::vector<Segment>& segments) {
  std::vector<Run> all;
  for (const std::vector<Run>& runs : plan.runs) all.insert(all.end(), runs.begin(), runs.end());
  std::sort(all.begin(), all.end(), [](const Run& a, const Run& b) { return std::pair(a.file, a.begin) < std::pair(b.file, b.begin); });
  auto run = all.begin();
  bool covered = true;
  std::vector<Window> ranges;
  for (const Segment& segment : segments) ranges.push_back({segment.file, segment.begin, segment.end});
  for (const Window& range : united(std::move(ranges))) {
    std::uint64_t position = range.begin;
    while (covered && position < range.end) {
      covered = run != all.end() && run->file == range.file && run->begin == position && run->end > position && run->end <= range.end;
      if (covered) position = run++->end;
    }
  }
  if (!covered || run != all.end()) throw Error(ErrorCode::internal, "plan: its runs do not cover the output exactly once");
}

}  // namespace

Plan make_plan(const Targets& targets, Layout layout, const PlanOptions& options) {
  if (options.ranks < 1 || options.window_bytes == 0 || options.step_bytes == 0 || options.boundary_bytes == 0) {
    throw Error(ErrorCode::internal, "plan: ranks, window, step and boundary must be above zero");
  }
  const std::vector<Segment> segments = segments_of(targets, layout, options);
  Plan plan;
  plan.windows = windows_of(targets, layout, options);
  plan.done = options.done;
  plan.layout = std::move(layout);
  plan.ranks = options.ranks;
  plan.boundary_bytes = options.boundary_bytes;
  plan.step_bytes = std::min(options.step_bytes, options.window_bytes);
  plan.step_bytes -= plan.step_bytes % std::min(plan.step_bytes, plan.boundary_bytes);
  deal_segments(segments, options, plan);
  plan.rounds.assign(plan.wave_count, 0);
  for (const std::vector<Run>& runs : plan.runs) {
    std::vector<std::uint64_t> steps(plan.wave_count, 0);
    for (const Run& run : runs) steps[run.wave] += step_count(plan, run);
    for (std::uint32_t wave = 0; wave < plan.wave_count; ++wave) plan.rounds[wave] = std::max(plan.rounds[wave], steps[wave]);
  }
  check_covered(plan, segments);
  return plan;
}

std::vector<Run> steps_of(const Plan& plan, int rank, std::uint32_t wave) {
  std::vector<Run> steps;
  for (const Run& run : plan.runs.at(static_cast<std::size_t>(rank))) {
    if (run.wave != wave) continue;
    for (std::uint64_t begin = run.begin; begin < run.end; begin = steps.back().end) {
      steps.push_back({run.file, run.wave, begin, step_end(plan, run, begin)});
    }
  }
  return steps;
}

std::uint64_t plan_hash(const Plan& plan) {
  Hash hash;
  hash.add_all(plan.ranks, plan.step_bytes, plan.wave_count, plan.layout.files.size(), plan.layout.placed.size(), plan.windows.size(),
               plan.groups.size());
  for (const OutputFile& file : plan.layout.files) {
    hash.add(file.name);
    hash.add(file.header);
    hash.add(file.size_bytes);
  }
  for (const PlacedTarget& placed : plan.layout.placed) hash.add_all(placed.target, placed.file, placed.position, placed.size_bytes);
  for (const Window& window : plan.windows) hash.add_all(window.file, window.begin, window.end);
  for (const std::vector<Run>& runs : plan.runs) {
    hash.add(runs.size());
    for (const Run& run : runs) hash.add_all(run.file, run.wave, run.begin, run.end);
  }
  for (const Group& group : plan.groups) {
    hash.add_all(group.file, group.wave);
    hash.add_list(group.ranks);
  }
  for (const std::uint64_t rounds : plan.rounds) hash.add(rounds);
  return hash.value();
}

std::vector<std::uint64_t> bytes_by_rank(const Plan& plan) {
  std::vector<std::uint64_t> bytes;
  for (const std::vector<Run>& runs : plan.runs) {
    std::uint64_t sum = 0;
    for (const Run& run : runs) sum += run.end - run.begin;
    bytes.push_back(sum);
  }
  return bytes;
}

std::pair<std::size_t, std::size_t> placed_in(const Plan& plan, std::uint32_t file, std::uint64_t begin, std::uint64_t end) {
  const std::vector<PlacedTarget>& placed = plan.layout.placed;
  const auto first = std::partition_point(placed.begin(), placed.end(), [&](const PlacedTarget& p) {
    return p.file < file || (p.file == file && p.position + p.size_bytes <= begin);
  });
  const auto last = std::partition_point(first, placed.end(), [&](const PlacedTarget& p) { return p.file == file && p.position < end; });
  return {static_cast<std::size_t>(first - placed.begin()), static_cast<std::size_t>(last - placed.begin())};
}

}  // namespace unshard
