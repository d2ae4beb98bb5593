// After megatron/core/transformer/transformer_layer.py (get_transformer_layer_offset), transformer_block.py (get_num_layers_to_build) and
// pipeline_parallel_layer_layout.py (PipelineParallelLayerLayout).
#include "formats/megatron_layers.h"

#include <algorithm>
#include <charconv>

#include "unshard/error.h"

namespace unshard {
namespace {

constexpr std::size_t most_layout_bytes = 1 << 20;

[[noreturn]] void refuse(const std::string& what) {
  throw Error(ErrorCode::bad_input, "args: " + what + "; the file is damaged or from another program");
}

/// Replaces `unit*n`, where `unit_of` finds the unit that ends before a star: its first byte, or npos when there is none.
template <class UnitOf>
std::string expanded(std::string text, UnitOf unit_of) {
  for (std::size_t star = text.find('*'); star != std::string::npos; star = text.find('*', star)) {
    const std::size_t begin = unit_of(text, star);
    if (begin == std::string::npos) {
      ++star;
      continue;
    }
    std::uint64_t times = 0;
    const char* digits = text.data() + star + 1;
    const auto [end, error] = std::from_chars(digits, text.data() + text.size(), times);
    const bool in_brackets = text[star - 1] == ')';
    const std::string unit = in_brackets ? text.substr(begin + 1, star - begin - 2) : text.substr(begin, star - begin);
    if (error != std::errc{} || times > most_layout_bytes || times * unit.size() > most_layout_bytes)
      refuse("pipeline_model_parallel_layout '" + printable(text, 200) + "' can't be read");
    std::string repeated;
    for (std::uint64_t i = 0; i < times; ++i) repeated += unit;
    text.replace(begin, static_cast<std::size_t>(end - text.data()) - begin, repeated);
    if (text.size() > most_layout_bytes) refuse("pipeline_model_parallel_layout is too long");
    star = begin;
  }
  return text;
}

/// Even stages, or stages of which the first or last has a stated number of layers.
LayerRange even_range(const MegatronArgs& args, std::uint64_t chunks, std::uint64_t layers, std::uint64_t vp, std::uint64_t pp) {
  const std::uint64_t pipeline = args.pipeline;
  const bool with_first = args.first_stage_layers.has_value(), with_last = args.last_stage_layers.has_value();
  if (with_first || with_last) {
    const std::uint64_t first = args.first_stage_layers.value_or(0), last = args.last_stage_layers.value_or(0);
    const std::uint64_t in_middle = pipeline - (with_first ? 1 : 0) - (with_last ? 1 : 0);
    if (first + last > layers || pipeline < (with_first ? 1U : 0U) + (with_last ? 1U : 0U))
      refuse("more layers in the first and last stage than num_layers");
    const std::uint64_t middle = layers - first - last;
    const std::uint64_t each = in_middle == 0 ? 0 : middle / chunks / in_middle;
    const std::uint64_t turn = first / chunks + middle / chunks + last / chunks;
    const std::uint64_t place = pp - (with_first ? 1 : 0);  // among the stages in the middle
    if (pp == 0 && with_first) return {vp * turn, first / chunks};
    const std::uint64_t offset = pp == 0 ? vp * turn : vp * turn + first / chunks + place * each;
    return {offset, pp + 1 == pipeline && with_last ? last / chunks : each};
  }
  const std::uint64_t counted = layers + (args.embedding_counts ? 1 : 0) + (args.loss_counts ? 1 : 0);
  const std::uint64_t each = counted / pipeline / chunks;
  const bool is_first = pp == 0 && vp == 0, is_last = pp + 1 == pipeline && vp + 1 == chunks;
  LayerRange range{vp * (counted / chunks) + pp * each, each};
  if (args.embedding_counts && !is_first) {
    if (range.first == 0) refuse("stages without layers");
    --range.first;
  }
  if (args.embedding_counts && is_first && range.count > 0) --range.count;
  if (args.loss_counts && is_last && range.count > 0) --range.count;
  return range;
}

}  // namespace

std::vector<std::uint64_t> layers_of_layout(const std::string& layout) {
  std::string text;
  for (const char c : layout) {
    if (c != ',' && c != ' ') text += c;
  }
  text = expanded(std::move(text), [](const std::string& all, std::size_t star) {
    return star > 0 && all[star - 1] == ')' ? all.rfind('(', star) : std::string::npos;
  });
  text = expanded(std::move(text), [](const std::string&, std::size_t star) { return star > 0 ? star - 1 : std::string::npos; });
  std::vector<std::uint64_t> stages{0};
  for (const char c : text) {
    if (c == '|') {
      stages.push_back(0);
    } else if (c == 't') {
      ++stages.back();
    } else if (c != 'E' && c != 'm' && c != 'L') {
      refuse("pipeline_model_parallel_layout '" + printable(layout, 200) + "' has '" + printable(std::string(1, c)) + "'");
    }
  }
  return stages;
}

std::vector<std::vector<LayerRange>> layers_by_args(const MegatronArgs& args, std::uint64_t chunks) {
  if (!args.layers) refuse("num_layers is missing");
  std::vector<std::vector<LayerRange>> ranges(chunks, std::vector<LayerRange>(args.pipeline));
  if (args.pipeline == 1 && chunks == 1) {
    ranges[0][0] = {0, *args.layers};
    return ranges;
  }
  if (args.layout.empty()) {
    for (std::uint64_t vp = 0; vp < chunks; ++vp) {
      for (std::uint64_t pp = 0; pp < args.pipeline; ++pp) ranges[vp][pp] = even_range(args, chunks, *args.layers, vp, pp);
    }
    return ranges;
  }
  const std::vector<std::uint64_t> stages = layers_of_layout(args.layout);
  if (stages.size() != chunks * args.pipeline)
    refuse("pipeline_model_parallel_layout has " + std::to_string(stages.size()) + " stages, expected " +
           std::to_string(chunks * args.pipeline));
  std::uint64_t next = 0;
  for (std::size_t stage = 0; stage < stages.size(); ++stage) {
    ranges[stage / args.pipeline][stage % args.pipeline] = {next, stages[stage]};
    next += stages[stage];
  }
  return ranges;
}

}  // namespace unshard
