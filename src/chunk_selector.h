// Which chunk records a rank's runs need; and their way to the ranks that need them.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "assemble.h"
#include "unshard/move.h"

namespace unshard {

/// Finds the records that a rank needs, among some: those of a home rank, or all that were sent to one. Keeps references.
class ChunkSelector {
 public:
  /// `chunks`: sorted by tensor, then box offset.
  ChunkSelector(std::span<const Chunk> chunks, std::size_t tensor_count, const Targets& targets, const Plan& plan)
      : targets_(targets), plan_(plan), chunks_(chunks), index_(chunks, tensor_count) {}

  /// Local, pure. Positions in `chunks`, ascending, of those that the runs of the ranks [first, end) of the plan need.
  [[nodiscard]] std::vector<std::uint64_t> needed_by(int first, int end) const;

 private:
  void add_run(const Run& run, std::vector<std::uint64_t>& numbers) const;
  void add_factors(const Computation& computation, std::vector<std::uint64_t>& numbers) const;
  void add_elements(const Target& target, std::uint64_t first, std::uint64_t end, std::vector<std::uint64_t>& numbers) const;
  [[nodiscard]] std::uint64_t number_of(const Chunk& chunk) const { return static_cast<std::uint64_t>(&chunk - chunks_.data()); }

  const Targets& targets_;
  const Plan& plan_;
  std::span<const Chunk> chunks_;
  ChunkIndex index_;
};

/// Local, pure. The planned ranks [first, end) for which rank `rank` of a job of `size` thinks: itself, where as many run as are planned.
[[nodiscard]] std::pair<int, int> planned_ranks(int rank, int size, int planned);

/// Collective. send_chunks for a plan of any number of ranks: the records that the ranks need for which this one thinks.
[[nodiscard]] ChunkTable send_planned_chunks(Comm& comm, const Catalog& catalog, const Targets& targets, const Plan& plan);

}  // namespace unshard
