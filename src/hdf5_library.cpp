// Loads libunshard_hdf5.so, which holds everything of HDF5.
#include "hdf5_library.h"

#include "plugin.h"

namespace unshard {

const Hdf5& hdf5() {
  static const Hdf5& loaded =
      *reinterpret_cast<const Hdf5* (*)()>(load_entry("libunshard_hdf5.so", "unshard_hdf5_v1", "HDF5 files"))();
  return loaded;
}

}  // namespace unshard
