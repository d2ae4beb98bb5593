#include "report.h"

#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "rank_figures.h"
#include "sha256.h"
#include "steps.h"
#include "stored_elements.h"
#include "unshard/agree.h"
#include "value_bytes.h"

namespace unshard {
namespace {

using nlohmann::ordered_json;

std::string dump(const ordered_json& value) {
  return value.dump(2, ' ', false, ordered_json::error_handler_t::replace);
}

ordered_json shape_json(const Shape& shape) {
  ordered_json list = ordered_json::array();
  for (const std::uint64_t extent : shape) list.push_back(extent);
  return list;
}

/// Collective. The values of all ranks, by rank, on `root`.
template <class Value>
std::vector<Value> gather_values(Comm& comm, const std::vector<Value>& mine, int root) {
  std::vector<Value> all;
  for (const Bytes& part : comm.gather(bytes_of(mine), root)) append_values(all, part);
  return all;
}

Digest digest_of(File& file, const WorkLimits& limits) {
  Sha256 sha;
  read_range(file, 0, file.size(), limits, [&](std::span<std::byte> bytes) { sha.add(bytes); });
  return sha.digest();
}

struct FileDigest {
  std::size_t file = 0;
  Digest digest{};
};

/// Collective. SHA-256 of every output file, by file, on `root`. The ranks that see the files read them in turn.
std::vector<std::string> file_digests(const Session& session, const MergeFacts& facts, int root) {
  const std::string& folder = facts.options.stage == 1 ? facts.target.partial : facts.target.path;
  const std::vector<OutputFile>& files = facts.plan.layout.files;
  std::vector<int> readers;
  for (int rank = 0; rank < session.comm.size(); ++rank)
    if (facts.target.writes(rank)) readers.push_back(rank);
  const auto mine = collectively(session.comm, "report", [&] {
    std::vector<FileDigest> digests;
    for (std::size_t i = 0; i < files.size(); ++i) {
      if (readers[i % readers.size()] != session.comm.rank()) continue;
      const std::string name = facts.options.stage == 1 ? partial_name(files[i]) : files[i].name;
      digests.push_back({i, digest_of(*session.files.open_for_reading(join_path(folder, name)), limits_of(session, facts.options.input))});
    }
    return digests;
  });
  std::vector<std::string> result(files.size());
  for (const FileDigest& one : gather_values(session.comm, mine, root)) result[one.file] = hexadecimal(one.digest);
  return result;
}

ordered_json source_tensors(const MergeFacts& facts) {
  std::vector<std::vector<std::string>> uses(facts.catalog.tensors.size());
  for (const Target& target : facts.mapping.targets.targets) {
    for (const TensorId source : sources_of(target)) uses[source].push_back(target.name);
  }
  std::map<std::string, std::string> reasons;
  for (const Unused& unused : facts.mapping.targets.unused) reasons[unused.name] = unused.reason;
  ordered_json list = ordered_json::array();
  for (std::size_t i = 0; i < facts.catalog.tensors.size(); ++i) {
    const TensorRow& row = facts.catalog.tensors[i];
    ordered_json entry{{"name", row.name}, {"dtype", info(row.dtype).name}, {"shape", shape_json(row.shape)}};
    if (row.origin == 1) entry["from"] = "fill-missing-from";
    if (!uses[i].empty()) {
      entry["used_by"] = uses[i];
    } else {
      entry["unused"] = reasons.contains(row.name) ? reasons[row.name] : "not needed";
    }
    list.push_back(std::move(entry));
  }
  for (const SetAside& aside : facts.source.set_aside) {
    ordered_json entry{{"name", aside.name}};
    if (aside.dtype) entry.update({{"dtype", info(*aside.dtype).name}, {"shape", shape_json(aside.shape)}});
    entry["unused"] = aside.reason;
    list.push_back(std::move(entry));
  }
  return list;
}

ordered_json output_tensors(const MergeFacts& facts) {
  ordered_json list = ordered_json::array();
  for (const PlacedTarget& placed : facts.plan.layout.placed) {
    const Target& target = facts.mapping.targets.targets[placed.target];
    std::set<std::string> from;
    for (const TensorId source : sources_of(target)) from.insert(facts.catalog.tensors[source].name);
    list.push_back({{"name", target.name},
                    {"dtype", info(target.dtype).name},
                    {"shape", shape_json(target.shape)},
                    {"file", facts.plan.layout.files[placed.file].name},
                    {"position", placed.position},
                    {"bytes", placed.size_bytes},
                    {"from", from}});
  }
  return list;
}

ordered_json full_report(const MergeFacts& facts, const std::vector<std::string>& digests, const std::vector<Extent>& extents) {
  ordered_json report;
  report["format"] = facts.source.format;
  report["world_size"] = facts.source.world_size;
  for (const ShardFile& file : facts.source.files) report["input_files"].push_back({{"name", file.label}, {"bytes", file.size_bytes}});
  report["source_tensors"] = source_tensors(facts);
  report["tensors"] = output_tensors(facts);
  report["filled"] = facts.mapping.filled;
  if (!facts.modules.empty()) report["modules"] = ordered_json::parse(facts.modules);
  for (std::size_t i = 0; i < facts.plan.layout.files.size(); ++i) {
    const OutputFile& file = facts.plan.layout.files[i];
    report["output_files"].push_back({{"name", file.name}, {"bytes", file.size_bytes}, {"sha256", digests[i]}});
  }
  for (const Extent& extent : extents) {
    report["extents"].push_back(
        {{"file", facts.plan.layout.files[extent.file].name}, {"begin", extent.begin}, {"end", extent.end}, {"crc32c", extent.crc32c}});
  }
  return report;
}

ordered_json rank_json(const RankFigures& figures, std::size_t rank) {
  ordered_json steps = ordered_json::object();
  for (const StepTime& time : figures.steps) steps[time.step] = seconds_of(time.ns);
  return {{"rank", rank},
          {"host", figures.host},
          {"read_bytes", figures.read_bytes},
          {"exchanged_bytes", figures.exchanged_bytes},
          {"messages", figures.messages},
          {"written_bytes", figures.written_bytes},
          {"opened_files", figures.opens},
          {"peak_rss_bytes", figures.peak_rss_bytes},
          {"busy_seconds", seconds_of(figures.busy_ns)},
          {"read_seconds", seconds_of(figures.read_ns)},
          {"exchange_seconds", seconds_of(figures.exchange_ns)},
          {"write_seconds", seconds_of(figures.write_ns)},
          {"seconds", steps}};
}

ordered_json summary(const MergeFacts& facts, const std::vector<RankFigures>& figures) {
  ordered_json result{{"command", facts.options.command},
                      {"format", facts.source.format},
                      {"world_size", facts.source.world_size},
                      {"target", facts.options.target_dir},
                      {"parameters", facts.mapping.targets.targets.size()}};
  for (const OutputFile& file : facts.plan.layout.files) result["files"].push_back({{"name", file.name}, {"bytes", file.size_bytes}});
  result["filled"] = facts.mapping.filled;
  result["warnings"] = facts.mapping.warnings;
  result["verified"] = facts.options.verify;
  if (!facts.modules.empty()) result["modules"] = ordered_json::parse(facts.modules);
  std::uint64_t bytes = 0;
  for (const RankFigures& rank : figures) bytes += rank.written_bytes;
  const double seconds = seconds_of(facts.times.total_ns());
  result["bytes"] = bytes;
  result["seconds"] = seconds;
  result["bytes_per_second"] = seconds > 0 ? static_cast<double>(bytes) / seconds : 0;
  result["slowest_rank"] = slowest_rank(figures);
  for (std::size_t rank = 0; rank < figures.size(); ++rank) result["ranks"].push_back(rank_json(figures[rank], rank));
  return result;
}

[[noreturn]] void refuse_report(const std::string& path, const std::string& what) {
  throw Error(ErrorCode::usage, "--report: " + printable(path, 4096) + ": " + what + "; choose another file");
}

bool lies_in(const std::string& path, const std::string& folder) {
  return path.starts_with(folder.ends_with('/') ? folder : folder + "/");
}

/// Which rank writes the report: rank 0; one in the model's folder somebody who sees that folder.
int report_writer(FileSystem& files, const std::string& report_path, const TargetFolder& target) {
  return lies_in(files.canonical(report_path), target.path) ? target.leader : 0;
}

}  // namespace

void check_report_path(const Session& session, const std::string& report_path, const TargetFolder& target,
                       const std::vector<std::string>& model_files, const std::vector<std::string>& sources) {
  if (report_path.empty()) return;
  collectively(session.comm, "report", [&] {
    const std::string path = session.files.canonical(report_path);
    for (const std::string& name : model_files) {
      if (path == join_path(target.path, name)) refuse_report(report_path, "is a file of the model that this run writes");
    }
    if (session.comm.rank() != report_writer(session.files, report_path, target)) return;
    const auto status = session.files.status(path);
    if (path == target.path || (status && status->kind == FileKind::folder)) refuse_report(report_path, "is a folder");
    if (lies_in(path, target.partial)) refuse_report(report_path, "lies in the partial folder of this run");
    for (const std::string& source : sources) {
      if (status && lies_in(path, session.files.canonical(source)))
        refuse_report(report_path, "is a file of the source folder " + printable(source, 4096));
    }
    if (lies_in(path, target.path)) return;  // the folder is made by then
    const auto folder = session.files.status(parent_path(path));
    if (!folder || folder->kind != FileKind::folder) {
      throw Error(ErrorCode::io,
                  "--report: " + printable(report_path, 4096) + ": there is no folder " + printable(parent_path(path), 4096));
    }
  });
}

std::string report_merge(const Session& session, const MergeFacts& facts) {
  if (!facts.options.report_path.empty()) {
    const int seen =
        collectively(session.comm, "report", [&] { return report_writer(session.files, facts.options.report_path, facts.target); });
    const auto writer =
        static_cast<int>(session.comm.reduce_all(session.comm.rank() == 0 ? static_cast<std::uint64_t>(seen) : 0, Reduction::max));
    const std::vector<std::string> digests = file_digests(session, facts, writer);
    const std::vector<Extent> extents = gather_values(session.comm, facts.moved.extents, writer);
    collectively(session.comm, "report", [&] {
      if (session.comm.rank() != writer) return;
      const std::string text = dump(full_report(facts, digests, extents)) + "\n";
      const auto failure = attempt([&] {
        // The user named it: that may be a link (/dev/stdout is one), which open_for_writing does not follow.
        const auto file = session.files.open_for_writing(session.files.canonical(facts.options.report_path), true);
        file->write_at(0, std::as_bytes(std::span(text)));
      });
      if (failure) throw Error(failure->code(), "--report: only the report is missing, all else is done: " + std::string(failure->what()));
    });
  }
  const std::vector<RankFigures> figures = gather_figures(session.comm, session.files, facts.moved, facts.times);
  if (session.comm.rank() != 0) return "";
  for (const std::string& line : rank_lines(figures)) session.log.detail(line);
  session.log.line(summary_line(figures, facts.times.total_ns()));
  return dump(summary(facts, figures));
}

}  // namespace unshard
