// What a plan writes: the segments of the stage, cut into windows.
#include <algorithm>
#include <charconv>
#include <string_view>

#include "checked_math.h"
#include "plan_parts.h"
#include "unshard/error.h"

namespace unshard {
namespace {

// Measured with adapters of rank 16 (bench/lora.sh): making a byte from factors takes about twice as long as moving it.
constexpr std::uint64_t computed_cost = 2;
constexpr std::uint64_t row_block = 128;  ///< windows hold a multiple of so many rows where they can: what block-wise transforms work on

bool in_stage(const Target& target, const PlanOptions& options) {
  return options.stage == 0 || stage_of(target.name, options.stage_layers) == options.stage;
}

/// How one tensor is cut: blocks from its start on, each block into pieces (one piece, where whole rows fit).
struct Cut {
  std::uint64_t block_bytes = 0;
  std::uint64_t piece_bytes = 0;
};

Cut cut_of(const Target& target, std::uint64_t window_bytes) {
  const std::uint64_t element = info(target.dtype).size_bytes;
  const std::uint64_t row = target.shape.size() < 2 ? element : target.shape[target.shape.size() - 1] * element;
  std::uint64_t rows = window_bytes / row;
  if (rows == 0) return {row, std::max(window_bytes / element, std::uint64_t{1}) * element};
  if (rows > row_block) rows -= rows % row_block;
  return {rows * row, rows * row};
}

/// Collects neighbours until a window is full.
class WindowWriter {
 public:
  explicit WindowWriter(std::uint64_t window_bytes) : window_bytes_(window_bytes) {}

  void add(const Target& target, const PlacedTarget& placed) {
    const std::uint64_t begin = placed.position, end = placed.position + placed.size_bytes;
    const bool joins = open_.end == begin && open_.file == placed.file && open_.end != open_.begin;
    if (joins && end - open_.begin <= window_bytes_) {
      open_.end = end;
      return;
    }
    close();
    if (placed.size_bytes <= window_bytes_) {
      open_ = {placed.file, begin, end};
      return;
    }
    const Cut cut = cut_of(target, window_bytes_);
    for (std::uint64_t block = begin; block < end; block += std::min(cut.block_bytes, end - block)) {
      const std::uint64_t block_end = block + std::min(cut.block_bytes, end - block);
      for (std::uint64_t piece = block; piece < block_end;) {
        const std::uint64_t piece_end = piece + std::min(cut.piece_bytes, block_end - piece);
        windows_.push_back({placed.file, piece, piece_end});
        piece = piece_end;
      }
    }
  }

  std::vector<Window> finish() {
    close();
    return std::move(windows_);
  }

 private:
  void close() {
    if (open_.begin != open_.end) windows_.push_back(open_);
    open_ = {};
  }

  std::uint64_t window_bytes_;
  Window open_;
  std::vector<Window> windows_;
};

/// The ranges (sorted, disjoint) without those that are done.
template <class Range>
std::vector<Range> left_of(const std::vector<Range>& ranges, const std::vector<Window>& done) {
  if (done.empty()) return ranges;
  std::vector<Range> left;
  const auto add = [&](Range range, std::uint64_t begin, std::uint64_t end) {
    range.begin = begin;
    range.end = end;
    left.push_back(range);
  };
  auto next = done.begin();
  for (const Range& range : ranges) {
    std::uint64_t begin = range.begin;
    while (next != done.end() && (next->file < range.file || (next->file == range.file && next->end <= begin))) ++next;
    for (auto inner = next; inner != done.end() && inner->file == range.file && inner->begin < range.end; ++inner) {
      if (begin < inner->begin) add(range, begin, inner->begin);
      begin = std::max(begin, inner->end);
    }
    if (begin < range.end) add(range, begin, range.end);
  }
  return left;
}

bool is_layer_list(std::string_view part) {
  return part == "layers" || part == "h" || part == "blocks";
}

}  // namespace

int stage_of(std::string_view name, std::uint64_t stage_layers) {
  std::string_view before;
  for (std::size_t begin = 0; begin <= name.size();) {
    const std::size_t dot = std::min(name.find('.', begin), name.size());
    const std::string_view part = name.substr(begin, dot - begin);
    std::uint64_t layer = 0;
    const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), layer);
    if (is_layer_list(before) && dot < name.size() && !part.empty() && end == part.data() + part.size() && error == std::errc()) {
      return layer < stage_layers ? 1 : 2;
    }
    before = part;
    begin = dot + 1;
  }
  // Word and position embeddings; GPT-2 calls them wte and wpe.
  for (const std::string_view embedding : {"embed", "wte.", "wpe."}) {
    if (name.find(embedding) != std::string_view::npos) return 1;
  }
  return 2;
}

std::vector<Segment> segments_of(const Targets& targets, const Layout& layout, const PlanOptions& options) {
  std::vector<Segment> segments;
  std::uint32_t file = 0;
  std::uint64_t position = 0;  // in the file: no target may begin before it
  for (const PlacedTarget& placed : layout.placed) {
    if (placed.file >= layout.files.size() || placed.target >= targets.targets.size() || placed.file < file) {
      throw Error(ErrorCode::internal, "plan: the layout's targets are not sorted by file, or it names a file or target that is not there");
    }
    const OutputFile& output = layout.files[placed.file];
    if (placed.file != file) position = 0;
    file = placed.file;
    position = std::max<std::uint64_t>(position, output.header.size());
    if (placed.position < position || !range_fits(placed.position, placed.size_bytes, output.size_bytes)) {
      throw Error(ErrorCode::internal, "plan: " + printable(targets.targets[placed.target].name) + ": " +
                                           std::to_string(placed.size_bytes) + " bytes at " + std::to_string(placed.position) +
                                           " do not fit into " + output.name);
    }
    position = placed.position + placed.size_bytes;
    const Target& target = targets.targets[placed.target];
    if (placed.size_bytes == 0 || !in_stage(target, options)) continue;
    const Segment segment{file, placed.position, position, target.computation ? computed_cost : 1};
    if (!segments.empty() && segments.back().file == file && segments.back().end == segment.begin && segments.back().cost == segment.cost) {
      segments.back().end = position;
    } else {
      segments.push_back(segment);
    }
  }
  return left_of(segments, options.done);
}

std::vector<Window> windows_of(const Targets& targets, const Layout& layout, const PlanOptions& options) {
  WindowWriter writer(options.window_bytes);
  for (const PlacedTarget& placed : layout.placed) {
    const Target& target = targets.targets[placed.target];
    if (placed.size_bytes != 0 && in_stage(target, options)) writer.add(target, placed);
  }
  return left_of(writer.finish(), options.done);
}

std::vector<Window> united(std::vector<Window> ranges) {
  std::sort(ranges.begin(), ranges.end(),
            [](const Window& a, const Window& b) { return std::pair(a.file, a.begin) < std::pair(b.file, b.begin); });
  std::vector<Window> result;
  for (const Window& next : ranges) {
    if (!result.empty() && result.back().file == next.file && next.begin <= result.back().end)
      result.back().end = std::max(result.back().end, next.end);
    else
      result.push_back(next);
  }
  return result;
}

}  // namespace unshard
