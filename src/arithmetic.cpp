// Loads libunshard_arithmetic.so, which holds everything of LibTorch, when something must be computed for the first time.
#include "unshard/arithmetic.h"

#include "plugin.h"

namespace unshard {

const Arithmetic& arithmetic() {
  static const Arithmetic& loaded =
      *reinterpret_cast<const Arithmetic* (*)()>(load_entry("libunshard_arithmetic.so", "unshard_arithmetic_v3", "arithmetic"))();
  return loaded;
}

}  // namespace unshard
