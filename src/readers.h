// What the choice of readers is made from, for ranks that run as for ranks that are only planned.
#pragma once

#include <cstdint>
#include <vector>

#include "rank_places.h"
#include "unshard/move.h"

namespace unshard {

/// What owners would do if each of them read what it needs: one rank, or several together.
struct OwnerReads {
  std::uint64_t opens = 0;  ///< besides those for headers
  bool see_all = true;
  bool can_share = false;  ///< ReadFacts::can_share, as far as these ranks know
};

/// Local, pure. Whether ranks in these places share open files, one of them with room for so many.
[[nodiscard]] bool can_share(const RankPlaces& places, const Source& source, std::size_t open_files);

/// Local, pure. `needed`: files that `rank` needs, in any order, any number of times. `header_readers`: by file.
[[nodiscard]] OwnerReads owner_reads(const RankPlaces& places, int rank, const Source& source, const std::vector<int>& header_readers,
                                     std::vector<FileId> needed);

/// Collective. From what every rank says of itself, or of the ranks for which it thinks.
[[nodiscard]] ReadFacts united(Comm& comm, const Source& source, const OwnerReads& mine);

}  // namespace unshard
