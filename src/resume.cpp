// Nothing in a journal is believed: each range is read again and compared with its checksum, by whatever number of ranks there is now. So
// what was lost with a node's page cache is found missing, without an fsync for every range.
#include "resume.h"

#include <algorithm>
#include <set>

#include "crc32c.h"
#include "plan_parts.h"
#include "unshard/agree.h"
#include "unshard/error.h"
#include "value_bytes.h"
#include "wire.h"
#include "workers.h"

namespace unshard {
namespace {

constexpr std::uint64_t piece_bytes = std::uint64_t{256} << 10;
constexpr unsigned block_shift = 26;  ///< blocks of 64 MiB of a file are compared by one rank

bool meets_window(const Plan& plan, const Extent& extent) {
  const auto window = std::partition_point(plan.windows.begin(), plan.windows.end(), [&](const Window& w) {
    return w.file < extent.file || (w.file == extent.file && w.end <= extent.begin);
  });
  return window != plan.windows.end() && window->file == extent.file && window->begin < extent.end;
}

/// Collective. The journals there are, by name, and the number of the next run.
std::vector<std::string> list_journals(Comm& comm, FileSystem& files, const TargetFolder& target, std::uint32_t& next_run) {
  Bytes packed = collectively(comm, "resume", [&] {
    WireWriter out;
    if (comm.rank() != target.leader) return out.take();
    std::set<std::uint32_t> runs;
    std::vector<std::string> names;
    for (const FolderEntry& entry : files.list(target.partial)) {
      const auto name = parse_journal_name(entry.name);
      if (!name || entry.status.kind != FileKind::file) continue;
      runs.insert(name->run);
      names.push_back(entry.name);
    }
    std::uint32_t next = 1;
    while (runs.contains(next)) ++next;
    out.number(next);
    for (const std::string& name : names) out.text(name);
    return out.take();
  });
  comm.broadcast(packed, target.leader);
  WireReader in(packed);
  next_run = static_cast<std::uint32_t>(in.number());
  std::vector<std::string> names;
  while (!in.at_end()) names.push_back(in.text());
  return names;
}

/// What the journal says that matters here.
std::vector<Extent> useful_extents(FileSystem& files, const std::string& path, const Plan& plan, const std::vector<std::uint8_t>& found,
                                   const JournalKey& key) {
  std::vector<std::uint64_t> sizes;
  for (const OutputFile& file : plan.layout.files) sizes.push_back(file.size_bytes);
  std::optional<JournalContent> content = read_journal(*files.open_for_reading(path), sizes);
  if (!content || content->key.command != key.command) return {};
  if (content->key.stage != key.stage && !(key.stage == 2 && content->key.stage == 1)) return {};  // stage 2 completes stage 1
  if (content->key.inputs != key.inputs) {
    const std::string_view advice =
        content->key.stage != key.stage ? "run --stage 1 again, with --restart" : "give --restart to start anew";
    throw Error(ErrorCode::usage, printable(parent_path(path), 4096) +
                                      ": the input files have changed since the run that is to be continued; " + std::string(advice));
  }
  std::erase_if(content->extents, [&](const Extent& extent) {
    return found[extent.file] == 0 || extent.begin < plan.layout.files[extent.file].header.size() || !meets_window(plan, extent);
  });
  return std::move(content->extents);
}

/// Collective. The extents of all journals, each on the rank that will compare it; sorted, each once.
std::vector<Extent> deal_extents(Comm& comm, FileSystem& files, const TargetFolder& target, const Plan& plan,
                                 const std::vector<std::uint8_t>& found, const JournalKey& key, const std::vector<std::string>& names) {
  std::vector<std::size_t> writers;
  for (int rank = 0; rank < comm.size(); ++rank)
    if (target.writes(rank)) writers.push_back(static_cast<std::size_t>(rank));
  std::vector<std::vector<Extent>> for_each(static_cast<std::size_t>(comm.size()));
  collectively(comm, "resume", [&] {
    for (std::size_t i = 0; i < names.size(); ++i) {
      if (writers[i % writers.size()] != static_cast<std::size_t>(comm.rank())) continue;
      for (const Extent& extent : useful_extents(files, join_path(target.partial, names[i]), plan, found, key))
        for_each[writers[(extent.file + (extent.begin >> block_shift)) % writers.size()]].push_back(extent);
    }
  });
  std::vector<Bytes> to_each;
  for (const std::vector<Extent>& extents : for_each) to_each.push_back(bytes_of(extents));
  std::vector<Extent> mine;
  for (const Bytes& bytes : comm.all_to_all(std::move(to_each))) append_values(mine, bytes);
  const auto key_of = [](const Extent& e) { return std::tuple(e.file, e.begin, e.end, e.crc32c); };
  std::sort(mine.begin(), mine.end(), [&](const Extent& a, const Extent& b) { return key_of(a) < key_of(b); });
  mine.erase(std::unique(mine.begin(), mine.end(), [&](const Extent& a, const Extent& b) { return key_of(a) == key_of(b); }), mine.end());
  return mine;
}

/// Reads the extents again; keeps those that are what the journals say.
std::vector<Extent> compare_extents(FileSystem& files, const std::string& folder, const Plan& plan, const std::vector<Extent>& extents,
                                    const WorkLimits& limits) {
  Workers workers(static_cast<std::size_t>(
      std::clamp<std::uint64_t>(limits.buffer_bytes / piece_bytes, 1, static_cast<std::uint64_t>(std::max(limits.threads, 1)))));
  std::vector<std::vector<std::byte>> buffers(workers.size(), std::vector<std::byte>(piece_bytes));
  std::vector<Extent> kept;
  for (std::size_t first = 0; first < extents.size();) {
    std::size_t last = first;
    while (last < extents.size() && extents[last].file == extents[first].file) ++last;
    const auto file = files.open_for_reading(join_path(folder, partial_name(plan.layout.files[extents[first].file])));
    std::vector<std::uint8_t> same(last - first, 0);
    workers.start(last - first, [&](std::size_t worker, std::size_t task) {
      const Extent& extent = extents[first + task];
      std::uint32_t checksum = 0;
      for (std::uint64_t at = extent.begin; at < extent.end;) {
        stop_if_signalled(limits);
        const std::span piece(buffers[worker].data(), static_cast<std::size_t>(std::min(piece_bytes, extent.end - at)));
        file->read_at(at, piece);
        checksum = crc32c(piece, checksum);
        at += piece.size();
      }
      same[task] = checksum == extent.crc32c ? 1 : 0;
    });
    if (const std::optional<Error> error = workers.wait()) throw *error;
    for (std::size_t i = first; i < last; ++i)
      if (same[i - first] != 0) kept.push_back(extents[i]);
    first = last;
  }
  return kept;
}

}  // namespace

Resumed resume_from_journals(Comm& comm, FileSystem& files, const TargetFolder& target, const Plan& plan,
                             const std::vector<std::uint8_t>& found, const JournalKey& key, const WorkLimits& limits) {
  Resumed resumed;
  const std::vector<std::string> names = list_journals(comm, files, target, resumed.run);
  if (names.empty()) return resumed;
  const std::vector<Extent> extents = deal_extents(comm, files, target, plan, found, key, names);
  resumed.extents = collectively(comm, "resume", [&] { return compare_extents(files, target.partial, plan, extents, limits); });
  std::vector<Window> mine;
  for (const Extent& extent : resumed.extents) mine.push_back({extent.file, extent.begin, extent.end});
  std::vector<Window> all;
  for (const Bytes& bytes : comm.gather_all(bytes_of(united(std::move(mine))))) append_values(all, bytes);
  resumed.done = united(std::move(all));
  return resumed;
}

std::unique_ptr<Journal> begin_journal(Comm& comm, FileSystem& files, const TargetFolder& target, const JournalKey& key,
                                       std::uint32_t run) {
  return collectively(comm, "resume", [&]() -> std::unique_ptr<Journal> {
    if (!target.writes(comm.rank())) return nullptr;
    const JournalName name{run, static_cast<std::uint32_t>(comm.rank())};
    return std::make_unique<Journal>(files, join_path(target.partial, journal_name(name)), key);
  });
}

void remove_journals(FileSystem& files, const std::string& folder, int stage) {
  for (const FolderEntry& entry : files.list(folder)) {
    if (!parse_journal_name(entry.name) || entry.status.kind == FileKind::folder) continue;
    const std::string path = join_path(folder, entry.name);
    if (stage != 0) {
      const auto content = read_journal(*files.open_for_reading(path), {});
      if (content && content->key.stage != stage) continue;
    }
    files.remove_file(path);
  }
}

}  // namespace unshard
