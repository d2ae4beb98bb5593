// Which rank reads which file: its headers, or its bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "rank_places.h"
#include "unshard/catalog.h"
#include "unshard/comm.h"
#include "unshard/source.h"

namespace unshard {

/// Local, pure: the same on every rank. One rank for each file of `source`, on a node that sees it: balanced in count, neighbouring files
/// on one rank. Throws Error(internal) for a file that no node sees.
[[nodiscard]] std::vector<int> file_owners(const RankPlaces& ranks, const Source& source);
[[nodiscard]] inline std::vector<int> file_owners(const Comm& comm, const Source& source) {
  return file_owners(RankPlaces(comm), source);
}

/// Local, pure. The files that `owners` give to a rank.
[[nodiscard]] std::vector<FileId> files_of(const std::vector<int>& owners, int rank);

/// Local, pure: the same on every rank. One rank for every byte of `source`, on a node that sees its file: balanced in bytes, neighbouring
/// bytes on one rank, so that two ranks share few files. Throws Error(internal) for a file that no node sees.
class ByteOwners {
 public:
  ByteOwners(const Comm& comm, const Source& source);
  /// The rank that reads the record of a piece.
  [[nodiscard]] int of(const Chunk& chunk) const;

 private:
  struct Group {  ///< files that the same nodes see, laid end to end
    std::vector<int> ranks;
    std::uint64_t bytes = 0;
  };
  struct Place {
    std::size_t group = 0;
    std::uint64_t before = 0;  ///< bytes of the group's files before this one
  };
  std::vector<Group> groups_;
  std::vector<Place> places_;  ///< by file
};

/// Local, pure. The lowest rank on one of `nodes`; throws Error(internal) when there is none.
[[nodiscard]] int lowest_rank_on(const Comm& comm, const std::vector<std::uint32_t>& nodes);

}  // namespace unshard
