// Ranks and their I/O threads share the cores already, and the last bit of a product may depend on how many threads made it: OpenBLAS
// 0.3.21 gives a block of 512 × 512 with 16 to 128 inner elements other bits on 3 threads than on 1, 2, 8 or 32, so that a node's cores
// would decide. LibTorch's own setting reaches OpenMP and MKL, but not the thread pool of OpenBLAS (Debian's libtorch calls the system's
// BLAS).
#include "one_thread.h"

#include <ATen/Parallel.h>
#include <dlfcn.h>

namespace unshard {

void compute_on_one_thread() {
  at::set_num_threads(1);
  // Looked up among the libraries that this one has loaded: which BLAS there is, the system decides.
  if (auto* set_threads = reinterpret_cast<void (*)(int)>(dlsym(RTLD_DEFAULT, "openblas_set_num_threads"))) set_threads(1);
}

}  // namespace unshard
