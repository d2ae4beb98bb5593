#include "formats/fsdp_files.h"

#include <charconv>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>

#include "formats/shard_files.h"

namespace unshard {
namespace {

constexpr std::uint32_t most_ranks = 1U << 24U;  // more than any job has; bounds what a file name can make us do
constexpr std::string_view config_name = "fsdp_config.json";

struct RankName {
  std::uint32_t world_size = 0, rank = 0;
};

/// A decimal number as trainers print it, from the front of `text`, which is shortened.
std::optional<std::uint32_t> take_number(std::string_view& text) {
  std::uint32_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const auto length = static_cast<std::size_t>(end - text.data());
  if (error != std::errc{} || value > most_ranks || (length > 1 && text.front() == '0')) return std::nullopt;
  text.remove_prefix(length);
  return value;
}

/// `<kind>_world_size_<W>_rank_<R>.pt`.
std::optional<RankName> parse_name(std::string_view name, std::string_view kind) {
  constexpr std::string_view size_part = "_world_size_", rank_part = "_rank_";
  if (!name.starts_with(kind)) return std::nullopt;
  name.remove_prefix(kind.size());
  if (!name.starts_with(size_part)) return std::nullopt;
  name.remove_prefix(size_part.size());
  const auto world_size = take_number(name);
  if (!world_size || *world_size == 0 || !name.starts_with(rank_part)) return std::nullopt;
  name.remove_prefix(rank_part.size());
  const auto rank = take_number(name);
  if (!rank || name != ".pt") return std::nullopt;
  return RankName{*world_size, *rank};
}

Error bad_input(const std::string& subject, const std::string& what) {
  return {ErrorCode::bad_input, printable(subject, 4096) + ": " + what};
}

/// What fsdp_config.json says; none when there is none, or when it does not say.
std::optional<std::uint32_t> stated_world_size(const Tree& tree, const std::string& path) {
  const TreeEntry* entry = tree.find(path);
  if (entry == nullptr) return std::nullopt;
  if (!entry->problem.empty()) throw bad_input(path, entry->problem);
  if (entry->status.kind != FileKind::file) throw bad_input(path, "is not a file");
  const auto config = nlohmann::json::parse(entry->content, nullptr, false);
  if (!config.is_object()) throw bad_input(path, "is not a JSON object; remove it to go by the file names");
  const auto found = config.find("world_size");
  if (found == config.end()) return std::nullopt;
  if (!found->is_number_unsigned() || found->get<std::uint64_t>() == 0 || found->get<std::uint64_t>() > most_ranks) {
    const std::string value = found->is_number() ? found->dump() : std::string("a ") + found->type_name();
    throw bad_input(path, "world_size is " + value + ", which is no number of ranks; remove the file to go by the file names");
  }
  return found->get<std::uint32_t>();
}

/// Files of one kind in all folders: world size, then rank, to paths.
using Found = std::map<std::uint32_t, std::map<std::uint32_t, std::vector<std::string>>>;

Found find_files(const Tree& tree, const std::vector<std::string>& folders, std::string_view kind) {
  Found found;
  for (const std::string& folder : folders) {
    for (const std::string& name : tree.children(folder)) {
      if (const auto parsed = parse_name(name, kind)) found[parsed->world_size][parsed->rank].push_back(join_path(folder, name));
    }
  }
  return found;
}

std::uint32_t choose_world_size(const Tree& tree, const std::vector<std::string>& folders, const Found& found) {
  std::optional<std::uint32_t> stated;
  std::string stated_by;
  for (const std::string& folder : folders) {
    const std::string path = join_path(folder, config_name);
    const auto here = stated_world_size(tree, path);
    if (stated && here && *stated != *here) {
      throw bad_input(path, "world_size is " + std::to_string(*here) + " but " + printable(stated_by, 4096) + " says " +
                                std::to_string(*stated) + "; give the folders of one checkpoint");
    }
    if (!here) continue;
    stated = here;
    stated_by = path;
  }
  if (stated) return *stated;
  if (found.size() == 1) return found.begin()->first;
  std::vector<std::string> sizes;
  for (const auto& [world_size, ranks] : found) {
    sizes.push_back("world size " + std::to_string(world_size) + " (" + std::string(base_name(ranks.begin()->second.front())) + ")");
  }
  throw bad_input(folders.front(), "rank files of several jobs: " + name_list(sizes) + ", and no " + std::string(config_name) +
                                       " that says which counts; move the others away");
}

/// `missing ranks 0-7, 12 of 16`, or "". The names of files may speak of millions of ranks, so they are not listed one by one.
std::string missing_ranks(const std::map<std::uint32_t, std::vector<std::string>>& present, std::uint32_t world_size) {
  constexpr int most_ranges = 16;
  std::string text;
  int ranges = 0;
  std::uint32_t next = 0;
  const auto gap = [&](std::uint32_t end) {
    if (next >= end || ++ranges > most_ranges) return;
    text += (text.empty() ? "" : ", ") + std::to_string(next) + (end - next > 1 ? "-" + std::to_string(end - 1) : "");
  };
  for (const auto& [rank, paths] : present) {
    if (rank >= world_size) break;
    gap(rank);
    next = rank + 1;
  }
  gap(world_size);
  if (text.empty()) return "";
  const std::string more = ranges > most_ranges ? " and " + std::to_string(ranges - most_ranges) + " more ranges" : "";
  return std::string(ranges > 1 || text.find('-') != std::string::npos ? "missing ranks " : "missing rank ") + text + more + " of " +
         std::to_string(world_size);
}

void note_side_files(const Tree& tree, const std::vector<std::string>& folders, std::string_view kind, const std::string& what,
                     Source& source) {
  const Found found = find_files(tree, folders, kind);
  const auto same_job = found.find(source.world_size);
  if (same_job == found.end()) return;
  const std::string missing = missing_ranks(same_job->second, source.world_size);
  if (!missing.empty())
    source.findings.push_back({Severity::note, what, missing + "; merging the model does not need them", ErrorCode::bad_input});
}

}  // namespace

bool is_fsdp_rank_file(const std::string& name) {
  return parse_name(name, "model").has_value();
}

Source describe_fsdp_files(const Tree& tree, const std::vector<std::string>& folders) {
  const Found found = find_files(tree, folders, "model");
  Source source;
  source.folder = folders.front();
  source.world_size = choose_world_size(tree, folders, found);
  for (const auto& [world_size, ranks] : found) {
    if (world_size == source.world_size) continue;
    source.findings.push_back(
        {Severity::note, source.folder,
         counted(ranks.size(), "rank file") + " of world size " + std::to_string(world_size) + " left from another run, not used",
         ErrorCode::bad_input});
  }
  const auto chosen = found.find(source.world_size);
  const auto ranks = chosen == found.end() ? std::map<std::uint32_t, std::vector<std::string>>{} : chosen->second;
  if (const std::string missing = missing_ranks(ranks, source.world_size); !missing.empty()) {
    source.findings.push_back({Severity::error, source.folder,
                               missing + "; run on every node that has some, or give all folders that hold rank files with --local-dir",
                               ErrorCode::bad_input});
  }
  for (const auto& [rank, paths] : ranks) {
    ShardFile file = shard_at(tree, paths);
    file.rank = rank;
    if (rank >= source.world_size) {
      source.findings.push_back({Severity::error, file.label,
                                 "is rank " + std::to_string(rank) + " of only " + std::to_string(source.world_size) + " ranks",
                                 ErrorCode::bad_input});
    } else if (is_usable(tree, file, source.findings)) {
      source.files.push_back(std::move(file));
    }
  }
  note_side_files(tree, folders, "optim", "optimizer files", source);
  note_side_files(tree, folders, "extra_state", "extra state files", source);
  return source;
}

}  // namespace unshard
