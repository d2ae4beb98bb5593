#include "descriptors.h"

#include <sys/resource.h>

#include <algorithm>

namespace unshard {

void allow_many_open_files() {
  constexpr rlim_t enough = 16384;
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= enough) return;
  limit.rlim_cur = std::min(limit.rlim_max, enough);
  (void)setrlimit(RLIMIT_NOFILE, &limit);
}

}  // namespace unshard
