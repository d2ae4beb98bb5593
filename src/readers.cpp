// Who reads the shards: the owners of the output, each for itself, or one home rank for each shard, which sends to the owners.
#include "readers.h"

#include <algorithm>
#include <utility>

#include "file_owners.h"
#include "unshard/agree.h"

namespace unshard {

Readers readers_for(const ReadFacts& facts) {
  if (!facts.owners_see_all) return Readers::homes;
  if (facts.opens_by_owners <= 2 * facts.files) return Readers::owners;
  return facts.can_share ? Readers::sharing : Readers::homes;
}

bool can_share(const RankPlaces& places, const Source& source, std::size_t open_files) {
  for (int rank = 1; rank < places.size(); ++rank)
    if (places.node_of(rank) != places.node_of(0)) return false;
  const std::uint64_t while_passing = source.files.size() + source.files.size() / 2;  // those that came, beside those of the cache
  return places.size() > 1 && while_passing <= open_files;
}

OwnerReads owner_reads(const RankPlaces& places, int rank, const Source& source, const std::vector<int>& header_readers,
                       std::vector<FileId> needed) {
  std::sort(needed.begin(), needed.end());
  needed.erase(std::unique(needed.begin(), needed.end()), needed.end());
  OwnerReads reads;
  for (const FileId file : needed) {
    if (header_readers[file] != rank) ++reads.opens;  // else it is still open
    reads.see_all = reads.see_all && places.sees(rank, source.files[file].nodes);
  }
  return reads;
}

ReadFacts united(Comm& comm, const Source& source, const OwnerReads& mine) {
  ReadFacts facts;
  facts.files = source.files.size();
  facts.opens_by_owners = facts.files + comm.reduce_all(mine.opens, Reduction::sum);
  facts.owners_see_all = comm.reduce_all(mine.see_all ? 1 : 0, Reduction::min) == 1;
  facts.can_share = comm.reduce_all(mine.can_share ? 1 : 0, Reduction::min) == 1;
  return facts;
}

ReadFacts read_facts(Comm& comm, const Source& source, const ChunkTable& chunks, std::size_t open_files) {
  const OwnerReads own = collectively(comm, "plan", [&] {
    const RankPlaces places(comm);
    std::vector<FileId> needed;
    for (const Chunk& chunk : chunks.chunks) {
      if (needed.empty() || needed.back() != chunk.file) needed.push_back(chunk.file);
    }
    OwnerReads reads = owner_reads(places, comm.rank(), source, file_owners(places, source), std::move(needed));
    reads.can_share = can_share(places, source, open_files);
    return reads;
  });
  return united(comm, source, own);
}

}  // namespace unshard
