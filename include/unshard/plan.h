// The output files byte by byte, cut into windows, dealt to ranks, in rounds. A pure function of targets and options: `merge --dry-run
// --ranks 64` needs no job of 64 ranks. All positions and sizes are bytes.
//
// Terms: a *file* holds a header and tensors, one after the other. A *window* is a contiguous range of one file, about 64 MiB: part of one
// large tensor (whole rows) or several small neighbours; the cut points depend on the layout only. A *run* is what one rank writes of one
// file in one go: a contiguous range; where two ranks meet inside a contiguous range of bytes, they meet at a multiple of 1 MiB of file
// offset. A *wave* is what is written at the same time: in a wave a rank either writes whole files (or pieces of files) alone, or shares
// one file with others. The ranks that write one file in one wave are a *group*; a file that several groups write in turn has a group in
// several waves. A *step* is at most `step_bytes` of a run: what a rank assembles and writes in one round. steps_of() says which steps, so
// that everybody cuts them alike.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "unshard/targets.h"

namespace unshard {

struct OutputFile {
  std::string name;    ///< model-00001-of-00002.safetensors
  std::string header;  ///< its first bytes, complete
  std::uint64_t size_bytes = 0;
};

/// Where a target lies. Sorted by file, then position. Zero-element targets have size_bytes 0.
struct PlacedTarget {
  std::uint32_t target = 0;  ///< number in Targets::targets
  std::uint32_t file = 0;
  std::uint64_t position = 0;
  std::uint64_t size_bytes = 0;
};

/// What an output format makes of the targets (OutputFormat::lay_out).
struct Layout {
  std::vector<OutputFile> files;
  std::vector<PlacedTarget> placed;
};

struct Window {
  std::uint32_t file = 0;
  std::uint64_t begin = 0, end = 0;  ///< of the file; the header belongs to no window
};

struct Run {
  std::uint32_t file = 0;
  std::uint32_t wave = 0;
  std::uint64_t begin = 0, end = 0;
};

/// The ranks that write one file in one wave, all with a run in it. A group of one needs no collective write. A rank outside every group
/// has nothing to write in that wave. In one wave a rank is in at most one group of several ranks, and then in no other.
struct Group {
  std::uint32_t file = 0;
  std::uint32_t wave = 0;
  std::vector<std::uint32_t> ranks;  ///< ascending
};

enum class IoMode : std::uint8_t { automatic, collective, posix };

/// In PlanOptions::nodes: the rank can't write.
inline constexpr int no_writer = -1;

/// Ranks meet in a file at multiples of this. Covers the stripes and lock units of the usual parallel file systems.
inline constexpr std::uint64_t usual_boundary_bytes = std::uint64_t{1} << 20;

struct PlanOptions {
  int ranks = 1;
  std::uint64_t window_bytes = std::uint64_t{64} << 20;
  std::uint64_t step_bytes = std::uint64_t{8} << 20;  ///< at most a window
  int stage = 0;                                      ///< 0: everything; 1: embeddings and the first stage_layers layers; 2: the rest
  std::uint64_t stage_layers = 10;
  std::vector<int> nodes = {};     ///< by rank: the node it runs on, or no_writer; empty: all of one node
  bool one_node_per_file = false;  ///< a file is written by ranks of one node only, as NFS needs it: its clients keep whole pages
  std::vector<Window> done = {};   ///< what an earlier run has written: sorted, disjoint; left out of windows and runs
  std::uint64_t boundary_bytes = usual_boundary_bytes;  ///< above 0; a rank gets less only where nothing more is left
};

struct Plan {
  Layout layout;
  std::vector<Window> windows;         ///< by file, then position; only those of the stage, without what is done
  std::vector<Window> done;            ///< PlanOptions::done
  std::vector<std::vector<Run>> runs;  ///< by rank; in order of wave, file, position
  std::vector<Group> groups;           ///< by wave, then file
  std::uint32_t wave_count = 0;
  std::vector<std::uint64_t> rounds;  ///< of each wave: the same number on every rank, that of the rank with most steps
  std::uint64_t step_bytes = 0;
  std::uint64_t boundary_bytes = usual_boundary_bytes;
  int ranks = 1;
};

/// Local, pure. The layout stays that of the whole model whatever the stage; windows and runs are those of the stage's targets. What
/// ranks make costs each the same (bytes; those that are computed count twice) but for a few percent where there is much more than
/// boundary_bytes a rank (with one_node_per_file: within a node; nodes share whole files as evenly as those allow); with less some ranks
/// have nothing. Throws Error(internal) if its own check fails: every byte of every target (of the stage, and not done) in exactly one run.
[[nodiscard]] Plan make_plan(const Targets& targets, Layout layout, const PlanOptions& options);

/// Local, pure. The steps of `rank` in `wave`, in order (of file and position): at most rounds[wave]. In round k a rank writes its step k,
/// or nothing when it has fewer. Steps end at a multiple of 1 MiB of file offset (of step_bytes, where that is less) or at the end of their
/// run.
[[nodiscard]] std::vector<Run> steps_of(const Plan& plan, int rank, std::uint32_t wave);

/// Local, pure. A hash of everything in the plan that ranks must agree on.
[[nodiscard]] std::uint64_t plan_hash(const Plan& plan);

/// Local, pure. Bytes that each rank writes.
[[nodiscard]] std::vector<std::uint64_t> bytes_by_rank(const Plan& plan);

/// Local, pure. Which stage of a staged merge writes the target: 1 for embeddings and layers below `stage_layers`, else 2. The layer is the
/// number in `layers.<n>.`, `h.<n>.` or `blocks.<n>.`.
[[nodiscard]] int stage_of(std::string_view name, std::uint64_t stage_layers);

/// Local, pure. Which placed targets (positions in layout.placed) meet [begin, end) of `file`: first and one past the last. Targets of size
/// 0 may be among them.
[[nodiscard]] std::pair<std::size_t, std::size_t> placed_in(const Plan& plan, std::uint32_t file, std::uint64_t begin, std::uint64_t end);

}  // namespace unshard
