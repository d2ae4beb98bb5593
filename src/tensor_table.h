// The tensor table: each rank knows the tensors of the files it has read; united, the table is the same on every rank and for any number of
// ranks.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "unshard/catalog.h"

namespace unshard {

/// Where a tensor was seen, and as what.
struct Sighting {
  FileId file = 0;
  std::uint64_t position = 0;  ///< in the file's list
  DType dtype = DType::f32;
  Shape shape;
};

/// A tensor in the files of one rank.
struct SeenTensor {
  std::string name;
  Sighting first;                 ///< in the lowest file
  std::optional<Sighting> other;  ///< in the lowest file that contradicts it
};

struct UnitedTable {
  std::vector<TensorRow> rows;      ///< in order of first sighting
  std::vector<TensorId> ids;        ///< of this rank's tensors, in the order given
  std::vector<bool> contradictory;  ///< by id: files disagree about dtype or shape
  std::vector<Finding> findings;    ///< which files
};

/// Local. `seen` gets what `sighting` adds; files come in ascending order.
void note_sighting(SeenTensor& seen, const Sighting& sighting);

/// Collective. `mine` in order of first sighting. Equal tables, the usual case, cost one small exchange.
[[nodiscard]] UnitedTable unite_tables(Comm& comm, const Source& source, const std::vector<SeenTensor>& mine);

}  // namespace unshard
