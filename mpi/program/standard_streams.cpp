#include "program/standard_streams.h"

#include <fcntl.h>
#include <unistd.h>

namespace unshard {

void keep_standard_descriptors_apart() {
  for (int descriptor = STDIN_FILENO; descriptor <= STDERR_FILENO; ++descriptor) {
    if (fcntl(descriptor, F_GETFD) != -1) continue;
    // The lowest free one is this one. Opened the wrong way round, so that reading or writing fails with EBADF, as when it is closed.
    (void)open("/dev/null", descriptor == STDIN_FILENO ? O_WRONLY : O_RDONLY);
  }
}

}  // namespace unshard
