// What Hugging Face's Accelerate saves of FSDP models (accelerate/utils/fsdp_utils.py, save_fsdp_model), its Trainer too; <i> numbers the
// models of one job and is left out for the first in the last two forms:
//
//   pytorch_model_fsdp_<i>/             SHARDED_STATE_DICT: a DCP checkpoint of {"model": …}
//   pytorch_model_fsdp[_<i>]_rank<R>.bin   LOCAL_STATE_DICT, or sharded with use_dcp=False: a file of torch.save for each rank
//   pytorch_model_fsdp[_<i>].bin           FULL_STATE_DICT: the whole model in one file of torch.save
//   optimizer_<i>/, optimizer*.bin, random_states_*.pkl, scheduler.bin, rng_state_*.pth …   never opened
//
// How many ranks there were stands in no file name, only in the device mesh or the shard lists of the tensors.
#include "formats/accelerate.h"

#include <algorithm>
#include <map>
#include <optional>

#include "checked_math.h"
#include "formats/config_places.h"
#include "formats/dcp.h"
#include "formats/dcp_index.h"
#include "formats/fsdp.h"
#include "formats/shard_files.h"
#include "labels.h"
#include "unshard/error.h"

namespace unshard {
namespace {

constexpr std::string_view stem = "pytorch_model_fsdp", ending = ".bin", rank_mark = "_rank";
constexpr std::uint32_t most_ranks = 1U << 24U;

/// What a file name says: which model, and of which rank (none: the whole model).
struct BinName {
  std::string model;  ///< "pytorch_model_fsdp_1"
  std::optional<std::uint32_t> rank;
};

std::optional<std::uint32_t> number(std::string_view text) {
  if (text.empty() || text.size() > 8 || text.find_first_not_of("0123456789") != std::string_view::npos) return std::nullopt;
  std::uint32_t value = 0;
  for (const char digit : text) value = value * 10 + static_cast<std::uint32_t>(digit - '0');
  return value < most_ranks ? std::optional(value) : std::nullopt;
}

std::optional<BinName> parse(std::string_view name) {
  if (!name.starts_with(stem) || !name.ends_with(ending)) return std::nullopt;
  name.remove_suffix(ending.size());
  BinName parsed;
  if (const auto at = name.rfind(rank_mark); at != std::string_view::npos && at >= stem.size()) {
    parsed.rank = number(name.substr(at + rank_mark.size()));
    if (!parsed.rank) return std::nullopt;
    name = name.substr(0, at);
  }
  if (name != stem && !(name[stem.size()] == '_' && number(name.substr(stem.size() + 1)))) return std::nullopt;
  parsed.model = name;
  return parsed;
}

bool is_model_folder(const Tree& tree, const std::string& folder) {
  return base_name(folder).starts_with(stem) && holds_dcp_files(tree, folder);
}
bool holds_bin_files(const Tree& tree, const std::string& folder) {
  const auto names = tree.children(folder);
  return std::any_of(names.begin(), names.end(), [](const std::string& name) { return parse(name).has_value(); });
}
bool is_bin_source(const Source& source) {
  return source.index_files.empty() && !source.files.empty() && source.files.front().label.ends_with(ending);
}

/// Files by what they are part of ("pytorch_model_fsdp_0", per rank or whole), then by rank, to paths.
using Saves = std::map<std::pair<std::string, bool>, std::map<std::uint32_t, std::vector<std::string>>>;

Saves find_saves(const Tree& tree, const std::vector<std::string>& folders) {
  Saves saves;
  for (const std::string& folder : folders) {
    for (const std::string& name : tree.children(folder)) {
      if (const auto parsed = parse(name))
        saves[{parsed->model, parsed->rank.has_value()}][parsed->rank.value_or(0)].push_back(join_path(folder, name));
    }
  }
  return saves;
}

std::string missing_ranks(const std::vector<std::uint64_t>& missing, std::uint64_t count) {
  return std::string(missing.size() == 1 ? "missing rank " : "missing ranks ") + as_ranges(missing) + " of " + std::to_string(count) +
         "; run on every node that has some, or give all folders that hold rank files with --local-dir";
}

Source describe_bin_files(const Tree& tree, const std::vector<std::string>& folders) {
  const Saves saves = find_saves(tree, folders);
  if (saves.size() > 1) {
    std::vector<std::string> names;
    for (const auto& [save, ranks] : saves) names.emplace_back(base_name(ranks.begin()->second.front()));
    throw Error(ErrorCode::bad_input, printable(folders.front(), 4096) + ": holds several models: " + name_list(names, 12) +
                                          "; leave only the files of one of them in the folder");
  }
  Source source;
  source.folder = folders.front();
  const auto& [save, ranks] = *saves.begin();
  if (save.second) source.world_size = ranks.rbegin()->first + 1;
  std::vector<std::uint64_t> missing;
  for (std::uint64_t rank = 0; rank < source.world_size && missing.size() < 1000; ++rank) {
    if (!ranks.contains(static_cast<std::uint32_t>(rank))) missing.push_back(rank);
  }
  if (!missing.empty())
    source.findings.push_back({Severity::error, source.folder, missing_ranks(missing, source.world_size), ErrorCode::bad_input});
  for (const auto& [rank, paths] : ranks) {
    ShardFile file = shard_at(tree, paths);
    file.rank = rank;
    if (is_usable(tree, file, source.findings)) source.files.push_back(std::move(file));
  }
  return source;
}

/// How many ranks saved a tensor, as far as its placement says.
std::uint64_t ranks_behind(const TorchEntry& entry) {
  if (entry.sharded) return entry.sharded->world_size;
  std::uint64_t ranks = 1;
  if (!entry.dtensor) return ranks;
  for (const std::uint64_t size : entry.dtensor->mesh_sizes) ranks = checked_multiply(ranks, size).value_or(UINT64_MAX);
  return ranks;
}

class AccelerateFormat final : public CheckpointFormat {
 public:
  [[nodiscard]] std::string_view name() const override { return "accelerate"; }
  [[nodiscard]] std::string_view description() const override {
    return "Accelerate or Trainer checkpoint of an FSDP model (pytorch_model_fsdp*)";
  }

  [[nodiscard]] bool recognises(const Tree& tree, const std::string& folder) const override {
    return is_model_folder(tree, folder) || holds_bin_files(tree, folder);
  }
  [[nodiscard]] bool fits(const Tree& tree, const std::string& folder) const override {
    return recognises(tree, folder) || (holds_dcp_files(tree, folder) && dcp_format().recognises(tree, folder));
  }

  [[nodiscard]] Source describe(const Tree& tree, const std::vector<std::string>& folders) const override {
    Source source = holds_bin_files(tree, folders.front()) ? describe_bin_files(tree, folders) : describe_dcp_folders(tree, folders);
    source.config_folders = config_places_beside(folders);
    return source;
  }

  [[nodiscard]] Bytes read_index(const Source& source, FileId file, File& open_file) const override {
    return dcp_format().read_index(source, file, open_file);
  }
  void apply_index(const Tree& tree, std::span<const Bytes> packed, Source& source) const override {
    dcp_format().apply_index(tree, packed, source);
  }

  [[nodiscard]] ShardContents read_headers(const Source& source, FileId file, File& open_file) const override {
    if (!is_bin_source(source)) return read_dcp_items(source, file, open_file);
    const ShardFile& shard = source.files[file];
    TorchContents contents = read_torch_file(open_file, shard.label, shard.rank);
    std::uint64_t ranks = 1;
    for (const TorchEntry& entry : contents.entries) ranks = std::max(ranks, ranks_behind(entry));
    if (ranks <= std::max<std::uint64_t>(source.world_size, 1)) return pieces_of_rank_file(source, std::move(contents));
    ShardContents nothing;
    std::vector<std::uint64_t> missing;
    for (std::uint64_t rank = std::max<std::uint64_t>(source.world_size, 1); rank < ranks && missing.size() < 1000; ++rank)
      missing.push_back(rank);
    nothing.findings.push_back({Severity::error, source.folder, missing_ranks(missing, ranks), ErrorCode::bad_input});
    return nothing;
  }
};

}  // namespace

const CheckpointFormat& accelerate_format() {
  static const AccelerateFormat format;
  return format;
}

}  // namespace unshard
