// Internal: the two halves of make_plan. plan_windows.cpp says what is written (segments, windows), plan_groups.cpp who writes it when.
#pragma once

#include <cstdint>
#include <vector>

#include "unshard/plan.h"

namespace unshard {

/// A contiguous range of a file that is to be written: all tensors, or those of the stage. Sorted by file and position; neighbours that are
/// adjacent differ in cost.
struct Segment {
  std::uint32_t file = 0;
  std::uint64_t begin = 0, end = 0;
  std::uint64_t cost = 1;  ///< of a byte, for a rank that makes it
};

/// Throws Error(internal) for a layout whose targets overlap, or leave their file, or lie inside its header.
[[nodiscard]] std::vector<Segment> segments_of(const Targets& targets, const Layout& layout, const PlanOptions& options);
[[nodiscard]] std::vector<Window> windows_of(const Targets& targets, const Layout& layout, const PlanOptions& options);

/// Local, pure. The ranges, sorted by file and position; those that overlap or touch become one.
[[nodiscard]] std::vector<Window> united(std::vector<Window> ranges);

/// Fills plan.runs, groups and wave_count; plan.layout and plan.ranks are there.
void deal_segments(const std::vector<Segment>& segments, const PlanOptions& options, Plan& plan);

}  // namespace unshard
