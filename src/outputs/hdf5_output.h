// The HDF5 output: one file, a dataset for each parameter.
#pragma once

#include "unshard/output_format.h"

namespace unshard {

[[nodiscard]] const OutputFormat& hdf5_output();

}  // namespace unshard
