// Products on one thread.
#pragma once

namespace unshard {

/// Local. From now on LibTorch and the BLAS below it compute on the thread that calls them.
void compute_on_one_thread();

}  // namespace unshard
