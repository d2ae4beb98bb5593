// A plan as text and as JSON, for merge --dry-run: what would be written, by whom, in how many rounds, and how even that is.
#include "dry_run.h"

#include <algorithm>
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string_view>
#include <utility>

#include "unshard/error.h"

namespace unshard {
namespace {

struct DTypeUse {
  std::uint64_t tensors = 0, elements = 0, bytes = 0;
};

struct FileUse {
  std::uint64_t tensors = 0, windows = 0, planned_bytes = 0;
  std::map<std::string, DTypeUse> dtypes;
};

struct Balance {
  std::uint64_t least = 0, most = 0, total = 0;
  double mean = 0;
  [[nodiscard]] double ratio() const { return most == 0 ? 1 : mean / static_cast<double>(most); }
};

std::vector<FileUse> use_of_files(const Targets& targets, const Plan& plan) {
  std::vector<FileUse> files(plan.layout.files.size());
  for (const PlacedTarget& placed : plan.layout.placed) {
    const Target& target = targets.targets[placed.target];
    FileUse& file = files[placed.file];
    DTypeUse& dtype = file.dtypes[std::string(info(target.dtype).name)];
    ++file.tensors;
    ++dtype.tensors;
    dtype.elements += volume(target.shape);
    dtype.bytes += placed.size_bytes;
  }
  for (const Window& window : plan.windows) {
    ++files[window.file].windows;
    files[window.file].planned_bytes += window.end - window.begin;
  }
  return files;
}

std::map<std::string, DTypeUse> use_of_dtypes(const std::vector<FileUse>& files) {
  std::map<std::string, DTypeUse> all;
  for (const FileUse& file : files) {
    for (const auto& [name, use] : file.dtypes) {
      all[name].tensors += use.tensors;
      all[name].elements += use.elements;
      all[name].bytes += use.bytes;
    }
  }
  return all;
}

Balance balance_of(const Plan& plan) {
  const std::vector<std::uint64_t> bytes = bytes_by_rank(plan);
  const auto [least, most] = std::minmax_element(bytes.begin(), bytes.end());
  const std::uint64_t total = std::accumulate(bytes.begin(), bytes.end(), std::uint64_t{0});
  return {*least, *most, total, static_cast<double>(total) / static_cast<double>(bytes.size())};
}

std::string decimals(double value, int digits) {
  std::string text(32, '\0');
  text.resize(static_cast<std::size_t>(std::snprintf(text.data(), text.size(), "%.*f", digits, value)));
  return text;
}

std::string ranks_of(const Group& group) {
  return as_ranges({group.ranks.begin(), group.ranks.end()});
}

/// `ranks 0-7 in wave 1, 8-15 in wave 2`: the groups that write the file.
std::string writers_of(const Plan& plan, std::uint32_t file) {
  std::string text;
  for (const Group& group : plan.groups) {
    if (group.file != file) continue;
    const std::string wave = plan.wave_count > 1 ? " in wave " + std::to_string(group.wave + 1) : "";
    text += (text.empty() ? (group.ranks.size() == 1 ? "rank " : "ranks ") : ", ") + ranks_of(group) + wave;
  }
  return text.empty() ? "nothing to write" : text;
}

std::string rounds_text(const Plan& plan) {
  std::string text;
  for (const std::uint64_t rounds : plan.rounds) text += (text.empty() ? "" : ", ") + std::to_string(rounds);
  return text.empty() ? "0" : text;
}

/// Who reads, for people and in JSON.
struct ReadersText {
  std::string_view line, json;
};

ReadersText text_of(Readers readers) {
  switch (readers) {
    case Readers::owners:
      return {"each rank what it writes", "owners"};
    case Readers::sharing:
      return {"each rank what it writes, from files that one rank opens and passes on", "owners that share open files"};
    case Readers::homes:
      return {"one rank for each shard", "home ranks"};
  }
  throw Error(ErrorCode::internal, "no text for these readers");
}

std::vector<std::string> needs_lines(const MoveNeeds& needs) {
  std::vector<std::string> lines;
  lines.push_back("Reading: " + std::string(text_of(needs.readers).line) + "; " + std::to_string(needs.read_bytes) + " bytes, " +
                  std::to_string(needs.opens) + " opens of shards, at most " + std::to_string(needs.most_opens) +
                  " by one rank (headers included)");
  lines.push_back("Exchange: " + counted(needs.messages, "message") + ", " + std::to_string(needs.exchanged_bytes) + " bytes");
  if (needs.other_ranks)
    lines.push_back("  (an estimate, since other ranks run now: as if each of the planned ones saw all shards and opened them itself)");
  return lines;
}

}  // namespace

std::vector<std::string> dry_run_lines(const Targets& targets, const Plan& plan, std::uint64_t buffer_bytes,
                                       const std::optional<MoveNeeds>& needs) {
  const std::vector<FileUse> files = use_of_files(targets, plan);
  const Balance balance = balance_of(plan);
  std::vector<std::string> lines;
  lines.push_back("Plan: " + counted(plan.layout.placed.size(), "tensor") + ", " + std::to_string(balance.total) + " bytes of tensors in " +
                  counted(files.size(), "file") + " by " + counted(static_cast<std::uint64_t>(plan.ranks), "rank"));
  for (const auto& [name, use] : use_of_dtypes(files)) {
    lines.push_back("  " + name + ": " + counted(use.tensors, "tensor") + ", " + counted(use.elements, "element") + ", " +
                    std::to_string(use.bytes) + " bytes");
  }
  for (std::uint32_t file = 0; file < files.size(); ++file) {
    const OutputFile& output = plan.layout.files[file];
    lines.push_back("  " + output.name + ": " + std::to_string(output.size_bytes) + " bytes (header " +
                    std::to_string(output.header.size()) + "), " + counted(files[file].tensors, "tensor") + ", " +
                    counted(files[file].windows, "window") + ", " + writers_of(plan, file));
  }
  lines.push_back("Waves: " + std::to_string(plan.wave_count) + ", rounds: " + rounds_text(plan) + ", at most " +
                  std::to_string(plan.step_bytes) + " bytes a rank and round");
  lines.push_back("Bytes by rank: least " + std::to_string(balance.least) + ", mean " + decimals(balance.mean, 0) + ", most " +
                  std::to_string(balance.most) + ", balance " + decimals(balance.ratio(), 3));
  if (needs) {
    for (std::string& line : needs_lines(*needs)) lines.push_back(std::move(line));
  }
  lines.push_back("Buffers: at most " + std::to_string(buffer_bytes) + " bytes a rank");
  return lines;
}

std::string dry_run_json(const Targets& targets, const Plan& plan, std::uint64_t buffer_bytes, const std::optional<MoveNeeds>& needs) {
  const std::vector<FileUse> files = use_of_files(targets, plan);
  const Balance balance = balance_of(plan);
  nlohmann::ordered_json json{{"ranks", plan.ranks}, {"tensors", plan.layout.placed.size()}, {"tensor_bytes", balance.total}};
  json["dtypes"] = nlohmann::ordered_json::object();
  for (const auto& [name, use] : use_of_dtypes(files)) {
    json["dtypes"][name] = {{"tensors", use.tensors}, {"elements", use.elements}, {"bytes", use.bytes}};
  }
  json["files"] = nlohmann::ordered_json::array();
  for (std::size_t i = 0; i < files.size(); ++i) {
    const OutputFile& output = plan.layout.files[i];
    json["files"].push_back({{"name", output.name},
                             {"size_bytes", output.size_bytes},
                             {"header_bytes", output.header.size()},
                             {"planned_bytes", files[i].planned_bytes},
                             {"tensors", files[i].tensors},
                             {"windows", files[i].windows}});
  }
  json["waves"] = nlohmann::ordered_json::array();
  for (std::uint32_t wave = 0; wave < plan.wave_count; ++wave) {
    nlohmann::ordered_json groups = nlohmann::ordered_json::array();
    for (const Group& group : plan.groups) {
      if (group.wave != wave) continue;
      groups.push_back({{"file", plan.layout.files[group.file].name}, {"ranks", ranks_of(group)}});
    }
    json["waves"].push_back({{"rounds", plan.rounds[wave]}, {"groups", std::move(groups)}});
  }
  json["step_bytes"] = plan.step_bytes;
  json["bytes_by_rank"] = {{"least", balance.least}, {"mean", balance.mean}, {"most", balance.most}, {"balance", balance.ratio()}};
  if (needs) {
    json["move"] = {{"readers", text_of(needs->readers).json},
                    {"read_bytes", needs->read_bytes},
                    {"opens", {{"all", needs->opens}, {"most_of_a_rank", needs->most_opens}}},
                    {"messages", needs->messages},
                    {"exchanged_bytes", needs->exchanged_bytes},
                    {"other_ranks", needs->other_ranks}};
  }
  json["buffer_bytes_by_rank"] = buffer_bytes;
  return json.dump();
}

}  // namespace unshard
