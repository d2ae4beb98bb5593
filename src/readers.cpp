// Who reads the shards: the owners of the output, each for itself, or one home rank for each shard, which sends to the owners.
#include <algorithm>
#include <cstddef>
#include <vector>

#include "file_owners.h"
#include "unshard/agree.h"
#include "unshard/move.h"

namespace unshard {
namespace {

/// The files that hold what this rank's runs are made of, ascending.
std::vector<FileId> needed_files(const ChunkTable& chunks) {
  std::vector<FileId> files;
  for (const Chunk& chunk : chunks.chunks) {
    if (files.empty() || files.back() != chunk.file) files.push_back(chunk.file);
  }
  std::sort(files.begin(), files.end());
  files.erase(std::unique(files.begin(), files.end()), files.end());
  return files;
}

}  // namespace

bool home_ranks_read(const ReadFacts& facts) {
  return !facts.owners_see_all || facts.opens_by_owners > 2 * facts.files;
}

ReadFacts read_facts(Comm& comm, const Source& source, const ChunkTable& chunks) {
  struct Own {
    std::uint64_t opens = 0;
    bool sees_all = true;
  };
  const Own own = collectively(comm, "plan", [&] {
    const std::vector<int> header_readers = file_owners(comm, source);
    const auto node = static_cast<std::uint32_t>(comm.node_of(comm.rank()));
    Own result;
    for (const FileId file : needed_files(chunks)) {
      if (header_readers[file] != comm.rank()) ++result.opens;  // else it is still open
      const std::vector<std::uint32_t>& nodes = source.files[file].nodes;
      result.sees_all = result.sees_all && std::binary_search(nodes.begin(), nodes.end(), node);
    }
    return result;
  });
  ReadFacts facts;
  facts.files = source.files.size();
  facts.opens_by_owners = facts.files + comm.reduce_all(own.opens, Reduction::sum);
  facts.owners_see_all = comm.reduce_all(own.sees_all ? 1 : 0, Reduction::min) == 1;
  return facts;
}

}  // namespace unshard
