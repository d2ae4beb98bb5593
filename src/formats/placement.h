// Which elements of a global tensor a rank's part of a DTensor holds.
#pragma once

#include <vector>

#include "formats/torch_file.h"
#include "unshard/tensor.h"

namespace unshard {

/// A rectangular piece: the elements `box` of the global tensor lie at `local_offset` of the local one.
struct PlacedPiece {
  Box box;
  Shape local_offset;
};

/// Local, pure. The pieces of `tensor`'s local part, in local order: none when it is empty, several when a strided placement leaves it with
/// rows from several places. Throws Error(bad_input) saying what contradicts what (without a name): partial sums, placements that do not
/// fit the mesh or the local shape.
[[nodiscard]] std::vector<PlacedPiece> place(const StoredDTensor& tensor);

}  // namespace unshard
