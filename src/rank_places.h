// Where ranks run, for what follows from that alone: who reads which file, who writes together. Those of a job, or planned ones.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "unshard/comm.h"

namespace unshard {

class RankPlaces {
 public:
  /// The ranks of a job.
  explicit RankPlaces(const Comm& comm) {
    for (int rank = 0; rank < comm.size(); ++rank) nodes_.push_back(comm.node_of(rank));
  }
  /// So many ranks of no job: all on one node, which sees every file.
  [[nodiscard]] static RankPlaces planned(int ranks) { return RankPlaces(static_cast<std::size_t>(ranks)); }

  [[nodiscard]] int size() const { return static_cast<int>(nodes_.size()); }
  [[nodiscard]] int node_of(int rank) const { return nodes_[static_cast<std::size_t>(rank)]; }
  /// Whether the rank sees what `nodes` (sorted) see.
  [[nodiscard]] bool sees(int rank, const std::vector<std::uint32_t>& nodes) const {
    return sees_all_ || std::binary_search(nodes.begin(), nodes.end(), static_cast<std::uint32_t>(node_of(rank)));
  }

 private:
  explicit RankPlaces(std::size_t planned_ranks) : nodes_(planned_ranks, 0), sees_all_(true) {}

  std::vector<int> nodes_;
  bool sees_all_ = false;
};

}  // namespace unshard
