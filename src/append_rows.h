// Adding the tensors of a second folder to a catalog, as rows of any origin.
#pragma once

#include "unshard/catalog.h"

namespace unshard {

/// Collective. append_catalog with another origin: 0 for an adapter, whose tensors belong to the checkpoint.
void append_rows(Comm& comm, Source& source, Catalog& catalog, const Source& other_source, const Catalog& other, std::uint8_t origin);

}  // namespace unshard
