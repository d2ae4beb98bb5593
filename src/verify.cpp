// verify: what was written is read back by another rank and compared with the checksums computed before the write.
#include <algorithm>
#include <atomic>
#include <map>
#include <memory>
#include <string>

#include "crc32c.h"
#include "read_back.h"
#include "unshard/agree.h"
#include "unshard/error.h"
#include "unshard/move.h"
#include "unshard/publish.h"
#include "value_bytes.h"
#include "workers.h"

namespace unshard {
namespace {

/// The ranks that see the files.
std::vector<int> ranks_but(const Comm& comm, const std::vector<int>& blind) {
  std::vector<int> ranks;
  for (int rank = 0; rank < comm.size(); ++rank)
    if (!std::binary_search(blind.begin(), blind.end(), rank)) ranks.push_back(rank);
  return ranks;
}

/// The rank at place p of `ranks` reads what the one at place p - shift wrote: the least shift that puts most readers on another node than
/// the writer.
std::size_t best_shift(const Comm& comm, const std::vector<int>& ranks) {
  constexpr std::size_t most_candidates = 512;
  std::size_t best = ranks.size() > 1 ? 1 : 0;
  int most = -1;
  for (std::size_t shift = 1; shift < std::min(ranks.size(), most_candidates); ++shift) {
    int others = 0;
    for (std::size_t place = 0; place < ranks.size(); ++place)
      others += comm.node_of(ranks[place]) != comm.node_of(ranks[(place + shift) % ranks.size()]) ? 1 : 0;
    if (others > most) {
      most = others;
      best = shift;
    }
  }
  return best;
}

/// Collective. The extents that this rank reads back.
std::vector<Extent> extents_to_read(Comm& comm, const std::vector<Extent>& written, const std::vector<int>& blind) {
  const std::vector<int> ranks = ranks_but(comm, blind);
  const std::size_t shift = best_shift(comm, ranks);
  std::vector<Bytes> to_each(static_cast<std::size_t>(comm.size()));
  const auto mine = std::find(ranks.begin(), ranks.end(), comm.rank());
  const auto place = static_cast<std::size_t>(mine - ranks.begin());
  if (mine != ranks.end()) to_each[static_cast<std::size_t>(ranks[(place + shift) % ranks.size()])] = bytes_of(written);
  const std::vector<Bytes> from_each = comm.all_to_all(std::move(to_each));
  std::vector<Extent> extents;
  for (const Bytes& part : from_each) append_values(extents, part);  // of one rank, or none
  return extents;
}

class ReadBack {
 public:
  ReadBack(FileSystem& files, const std::string& folder, const Plan& plan, const WorkLimits& limits)
      : files_(files), folder_(folder), plan_(plan), limits_(limits) {}

  /// Reads `extents`, all of one file.
  void check_file(std::span<const Extent> extents, Workers& workers, std::vector<std::vector<std::byte>>& buffers) {
    const std::unique_ptr<File> file = files_.open_for_reading(join_path(folder_, partial_name(plan_.layout.files[extents[0].file])));
    std::vector<std::vector<std::uint32_t>> checksums;  // of each extent's pieces
    std::vector<std::atomic<std::size_t>> left(extents.size());
    std::vector<std::pair<std::size_t, std::size_t>> pieces;
    for (std::size_t e = 0; e < extents.size(); ++e) {
      checksums.emplace_back((extents[e].end - extents[e].begin + read_back_bytes - 1) / read_back_bytes);
      for (std::size_t p = 0; p < checksums.back().size(); ++p) pieces.emplace_back(e, p);
      left[e] = checksums.back().size();
    }
    workers.start(pieces.size(), [&](std::size_t worker, std::size_t task) {
      stop_if_signalled(limits_);
      const auto [e, p] = pieces[task];
      const std::uint64_t begin = extents[e].begin + p * read_back_bytes, end = std::min(extents[e].end, begin + read_back_bytes);
      checksums[e][p] = checksum_of_written(*file, begin, std::span(buffers[worker]).first(end - begin));
      // Nobody needs the pages again, and a job is charged for them. While this thread waits for the device the others read on.
      if (--left[e] == 0) file->drop_cache(extents[e].begin, extents[e].end - extents[e].begin);
    });
    if (const std::optional<Error> error = workers.wait()) throw *error;
    for (std::size_t e = 0; e < extents.size(); ++e) compare(*file, extents[e], checksums[e]);
  }

 private:
  static void compare(const File& file, const Extent& extent, const std::vector<std::uint32_t>& pieces) {
    std::uint32_t all = 0;
    std::uint64_t position = extent.begin;
    for (const std::uint32_t piece : pieces) {
      const std::uint64_t bytes = std::min(read_back_bytes, extent.end - position);
      all = crc32c_joined(all, piece, bytes);
      position += bytes;
    }
    require_as_written(file, extent, all);
  }

  FileSystem& files_;
  const std::string& folder_;
  const Plan& plan_;
  const WorkLimits& limits_;
};

}  // namespace

void verify(Comm& comm, FileSystem& target_files, const std::string& folder, const Plan& plan, const std::vector<Extent>& extents,
            const WorkLimits& limits, const std::vector<int>& blind) {
  const std::vector<Extent> mine = extents_to_read(comm, extents, blind);
  collectively(comm, "verify", [&] {
    Workers workers(static_cast<std::size_t>(
        std::clamp<std::uint64_t>(limits.buffer_bytes / read_back_bytes, 1, static_cast<std::uint64_t>(std::max(limits.threads, 1)))));
    std::vector<std::vector<std::byte>> buffers(workers.size(), std::vector<std::byte>(read_back_bytes));
    ReadBack read_back(target_files, folder, plan, limits);
    for (std::size_t first = 0; first < mine.size();) {
      std::size_t last = first;
      while (last < mine.size() && mine[last].file == mine[first].file) ++last;
      read_back.check_file(std::span(mine).subspan(first, last - first), workers, buffers);
      first = last;
    }
  });
}

}  // namespace unshard
