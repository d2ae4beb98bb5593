// Which rank writes which file: megatron/training/checkpointing.py (save_checkpoint) and megatron/core/parallel_state.py (RankGenerator,
// tensor ranks fastest). A folder's second number is the pipeline or the expert rank, and only the arguments tell.
#include "formats/megatron_grid.h"

#include <algorithm>
#include <cstdio>
#include <numeric>
#include <set>

#include "formats/megatron_files.h"
#include "unshard/error.h"
#include "unshard/file_system.h"

namespace unshard {
namespace {

constexpr std::size_t most_folders_named = 12;
constexpr std::uint64_t most_ranks = 1'000'000;  // more than any job has

std::string folder_name(const MegatronGrid& grid, std::uint64_t tensor, std::uint64_t pipeline, std::uint64_t expert) {
  char text[96];
  std::snprintf(text, sizeof text, "mp_rank_%02llu", static_cast<unsigned long long>(tensor));
  std::string name = text;
  for (const auto& [size, rank] : {std::pair{grid.pipeline, pipeline}, std::pair{grid.expert, expert}}) {
    if (size <= 1) continue;
    std::snprintf(text, sizeof text, "_%03llu", static_cast<unsigned long long>(rank));
    name += text;
  }
  return name;
}

class GridMaker {
 public:
  GridMaker(const Source& source, const std::vector<std::vector<std::byte>>& about) : source_(source) {
    for (const auto& bytes : about) {
      readable_.push_back(!bytes.empty());
      files_.push_back(bytes.empty() ? MegatronFile{} : decode_megatron_file(bytes));
    }
    for (const ShardFile& file : source.files) {
      const auto parsed = parse_megatron_folder(base_name(parent_path(file.path)));
      if (!parsed) throw Error(ErrorCode::internal, printable(file.label) + ": is in no folder of a rank");
      numbers_.push_back(parsed->numbers);
    }
  }

  MegatronGrid run() {
    if (std::none_of(readable_.begin(), readable_.end(), [](bool one) { return one; })) {  // what is wrong with them is known already
      grid_.places.resize(files_.size());
      return std::move(grid_);
    }
    take_args();
    if (args_ != nullptr) {
      sizes_by_args();
    } else {
      sizes_by_names();
    }
    place_files();
    find_missing();
    count_chunks();
    count_experts();
    find_layers();
    return std::move(grid_);
  }

 private:
  [[nodiscard]] std::string label(std::size_t file) const { return printable(source_.files[file].label, 4096); }
  void error(const std::string& subject, const std::string& text, ErrorCode code = ErrorCode::bad_input) {
    grid_.findings.push_back({Severity::error, subject, text, code});
  }
  [[noreturn]] static void fail(const std::string& subject, const std::string& text, ErrorCode code = ErrorCode::bad_input) {
    throw Error(code, subject + ": " + text);
  }

  void take_args() {
    std::size_t first = 0;
    for (std::size_t i = 0; i < files_.size(); ++i) {
      if (!readable_[i] || !files_[i].args) continue;
      if (args_ == nullptr) {
        args_ = &*files_[i].args;
        first = i;
      } else if (!(*files_[i].args == *args_)) {
        fail(label(i), "was saved with other parallel sizes or another model than " + label(first) +
                           " (its args differ); give the files of one checkpoint");
      }
    }
    if (args_ != nullptr && !args_->unsupported.empty()) {
      fail(label(first), "args." + args_->unsupported + " is set, and this version does not know how that lays out the tensors",
           ErrorCode::unsupported);
    }
  }

  void sizes_by_args() {
    grid_.tensor = args_->tensor;
    grid_.pipeline = args_->pipeline;
    grid_.expert = args_->expert;
    grid_.expert_tensor = args_->expert_tensor.value_or(args_->tensor);
    if (grid_.expert == 1 && !args_->experts) grid_.expert_tensor = grid_.tensor;
    grid_.padded_vocabulary = args_->padded_vocabulary;
    add_model_facts(*args_, grid_.of_args);
    const std::string sizes = "tensor-parallel " + std::to_string(grid_.tensor) + ", pipeline-parallel " + std::to_string(grid_.pipeline) +
                              ", expert-parallel " + std::to_string(grid_.expert);
    const std::size_t parts = 1 + (grid_.pipeline > 1 ? 1 : 0) + (grid_.expert > 1 ? 1 : 0);
    if (numbers_.front().size() != parts)
      fail(label(0),
           "its folder's name has " + std::to_string(numbers_.front().size()) + " numbers, but args say " + sizes + "; was it renamed?");
    if (grid_.tensor % grid_.expert_tensor != 0) {
      fail(label(0),
           "expert-tensor-parallel " + std::to_string(grid_.expert_tensor) + " does not divide tensor-parallel " +
               std::to_string(grid_.tensor) + ": ranks overwrote each other's files when this was saved",
           ErrorCode::unsupported);
    }
  }

  /// verl's older files have no args: sizes are those of the names, and whether a second number is a pipeline or an expert rank shows in
  /// what the files hold, since only the first pipeline stage has the embedding.
  void sizes_by_names() {
    std::vector<std::uint64_t> sizes(3, 1);
    bool later_has_embedding = false;
    for (std::size_t i = 0; i < files_.size(); ++i) {
      for (std::size_t k = 0; k < numbers_[i].size(); ++k) sizes[k] = std::max(sizes[k], numbers_[i][k] + 1);
      if (numbers_[i].size() == 2 && numbers_[i][1] > 0 && files_[i].has_embedding) later_has_embedding = true;
    }
    for (std::size_t k = 1; k < numbers_.front().size(); ++k) {
      if (sizes[k] == 1) error(label(0), "its folder's name says that there are more pipeline or expert ranks, but none is here");
    }
    grid_.tensor = sizes[0];
    const bool second_is_expert = numbers_.front().size() == 2 && later_has_embedding;
    grid_.pipeline = second_is_expert ? 1 : sizes[1];
    grid_.expert = second_is_expert ? sizes[1] : sizes[2];
    grid_.expert_tensor = grid_.tensor;
  }

  void place_files() {
    for (std::size_t i = 0; i < files_.size(); ++i) {
      const std::vector<std::uint64_t>& numbers = numbers_[i];
      MegatronPlace place{numbers[0], 0, 0, numbers[0] % grid_.expert_tensor};
      std::size_t next = 1;
      if (grid_.pipeline > 1 && next < numbers.size()) place.pipeline = numbers[next++];
      if (grid_.expert > 1 && next < numbers.size()) place.expert = numbers[next];
      if (place.tensor >= grid_.tensor || place.pipeline >= grid_.pipeline || place.expert >= grid_.expert)
        fail(label(i), "is a rank beyond tensor-parallel " + std::to_string(grid_.tensor) + ", pipeline-parallel " +
                           std::to_string(grid_.pipeline) + ", expert-parallel " + std::to_string(grid_.expert) +
                           "; move files of other runs away");
      grid_.places.push_back(place);
    }
  }

  /// The folders that a complete save has, of one pipeline rank: (tensor rank, expert rank).
  [[nodiscard]] std::set<std::pair<std::uint64_t, std::uint64_t>> folders_of_a_stage() const {
    std::set<std::pair<std::uint64_t, std::uint64_t>> folders;
    const std::uint64_t ranks = std::max(grid_.tensor, grid_.expert_tensor * grid_.expert);
    if (grid_.expert_tensor == grid_.tensor || grid_.expert == 1) {
      for (std::uint64_t t = 0; t < grid_.tensor; ++t) {
        for (std::uint64_t e = 0; e < grid_.expert; ++e) folders.emplace(t, e);
      }
      return folders;
    }
    for (std::uint64_t rank = 0; rank < ranks; ++rank) folders.emplace(rank % grid_.tensor, rank / grid_.expert_tensor % grid_.expert);
    return folders;
  }

  /// A part that no file has: of the dense tensors (tensor rank, pipeline rank), of the experts (expert-tensor rank, expert rank, pipeline
  /// rank).
  void find_missing() {
    const std::uint64_t grid_size = grid_.pipeline * grid_.tensor * grid_.expert;
    if (grid_size > most_ranks) fail(label(0), "its args say that there are " + std::to_string(grid_size) + " ranks, which is impossible");
    std::set<std::tuple<std::uint64_t, std::uint64_t>> dense;
    std::set<std::tuple<std::uint64_t, std::uint64_t, std::uint64_t>> expert, here;
    for (const MegatronPlace& place : grid_.places) {
      dense.emplace(place.tensor, place.pipeline);
      expert.emplace(place.expert_tensor, place.expert, place.pipeline);
      here.emplace(place.tensor, place.expert, place.pipeline);
    }
    std::vector<std::string> missing;
    for (std::uint64_t pipeline = 0; pipeline < grid_.pipeline; ++pipeline) {
      for (const auto& [tensor_rank, expert_rank] : folders_of_a_stage()) {
        if (here.count({tensor_rank, expert_rank, pipeline}) > 0) continue;
        const bool is_needed = dense.count({tensor_rank, pipeline}) == 0 ||
                               (grid_.expert > 1 && expert.count({tensor_rank % grid_.expert_tensor, expert_rank, pipeline}) == 0);
        if (is_needed) missing.push_back(folder_name(grid_, tensor_rank, pipeline, expert_rank));
      }
    }
    if (missing.empty()) return;
    std::string text = "missing ";
    for (std::size_t i = 0; i < std::min(missing.size(), most_folders_named); ++i) text += (i > 0 ? ", " : "") + missing[i];
    if (missing.size() > most_folders_named) text += " and " + std::to_string(missing.size() - most_folders_named) + " more";
    error(source_.folder, text + " (tensor-parallel " + std::to_string(grid_.tensor) + ", pipeline-parallel " +
                              std::to_string(grid_.pipeline) + ", expert-parallel " + std::to_string(grid_.expert) +
                              "); run on every node that has some, or give all folders that hold such ranks with --local-dir");
  }

  void count_chunks() {
    std::size_t first = files_.size();
    for (std::size_t i = 0; i < files_.size(); ++i) {
      if (!readable_[i]) continue;
      if (first == files_.size()) first = i;
      if (files_[i].chunk_layers.size() != files_[first].chunk_layers.size())
        fail(label(i), "has " + std::to_string(files_[i].chunk_layers.size()) + " model chunks, " + label(first) + " has " +
                           std::to_string(files_[first].chunk_layers.size()) + "; give the files of one checkpoint");
    }
    grid_.chunks = files_[first].chunk_layers.size();
    if (grid_.chunks * grid_.pipeline > most_ranks) fail(label(first), "has more virtual pipeline stages than is possible");
  }

  void count_experts() {
    std::size_t local = 0;
    for (std::size_t i = 0; i < files_.size(); ++i) {
      if (files_[i].routed_experts > 0) grid_.experts = files_[i].routed_experts;
      local = std::max(local, static_cast<std::size_t>(files_[i].local_experts));
    }
    if (args_ != nullptr && args_->experts) grid_.experts = *args_->experts;
    if (grid_.experts == 0) grid_.experts = local * grid_.expert;
    if (grid_.experts % grid_.expert != 0)
      fail(label(0), std::to_string(grid_.experts) + " experts can't lie on " + std::to_string(grid_.expert) + " expert-parallel ranks");
  }

  void find_layers() {
    grid_.layers = args_ != nullptr && args_->layers ? layers_by_args(*args_, grid_.chunks) : layers_by_counting();
    for (std::size_t i = 0; i < files_.size(); ++i) {
      if (!readable_[i]) continue;
      for (std::size_t chunk = 0; chunk < grid_.chunks; ++chunk) {
        const LayerRange& range = grid_.layers[chunk][grid_.places[i].pipeline];
        if (files_[i].chunk_layers[chunk] == range.count) continue;
        error(source_.files[i].label, "has " + std::to_string(files_[i].chunk_layers[chunk]) + " layers" +
                                          (grid_.chunks > 1 ? " in model" + std::to_string(chunk) : "") + ", but " +
                                          (args_ != nullptr ? "args place " : "the other files of its stage have ") +
                                          std::to_string(range.count) + " there");
      }
    }
    if (args_ != nullptr && args_->layers) check_ranges(*args_->layers);
  }

  /// Without args: the stages one after the other, all pipeline ranks of a chunk before the next chunk.
  [[nodiscard]] std::vector<std::vector<LayerRange>> layers_by_counting() const {
    std::vector<std::vector<LayerRange>> ranges(grid_.chunks, std::vector<LayerRange>(grid_.pipeline));
    for (std::size_t i = 0; i < files_.size(); ++i) {
      if (!readable_[i]) continue;
      for (std::size_t chunk = 0; chunk < grid_.chunks; ++chunk)
        ranges[chunk][grid_.places[i].pipeline].count = files_[i].chunk_layers[chunk];
    }
    std::uint64_t next = 0;
    for (auto& stages : ranges) {
      for (LayerRange& range : stages) {
        range.first = next;
        next += range.count;
      }
    }
    return ranges;
  }

  /// That the stages hold layers 0 to `layers` - 1, each once.
  void check_ranges(std::uint64_t layers) {
    std::vector<LayerRange> all;
    for (const auto& stages : grid_.layers) all.insert(all.end(), stages.begin(), stages.end());
    std::sort(all.begin(), all.end(), [](const LayerRange& a, const LayerRange& b) { return a.first < b.first; });
    std::uint64_t next = 0;
    for (const LayerRange& range : all) {
      if (range.count == 0) continue;
      if (range.first != next) break;
      next += range.count;
    }
    if (next != layers)
      error(source_.folder, "args place layers 0-" + std::to_string(next) + " without a gap, but num_layers is " + std::to_string(layers));
  }

  const Source& source_;
  std::vector<bool> readable_;
  std::vector<MegatronFile> files_;
  std::vector<std::vector<std::uint64_t>> numbers_;
  const MegatronArgs* args_ = nullptr;
  MegatronGrid grid_;
};

}  // namespace

Facts MegatronGrid::facts() const {
  Facts facts{{"tensor_parallel", tensor}, {"pipeline_parallel", pipeline}, {"glu_pieces", tensor}};
  if (chunks > 1) facts["virtual_pipeline_parallel"] = chunks;
  if (experts > 0) {
    facts["expert_parallel"] = expert;
    facts["expert_tensor_parallel"] = expert_tensor;
    facts["expert_glu_pieces"] = expert_tensor;
  }
  facts.insert(of_args.begin(), of_args.end());
  return facts;
}

MegatronGrid make_megatron_grid(const Source& source, const std::vector<std::vector<std::byte>>& about) {
  return GridMaker(source, about).run();
}

}  // namespace unshard
