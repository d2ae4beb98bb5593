// HDF5 in a child process, which may crash: on a damaged file, and where it can't write (1.14 at once, 1.10 when it ends).
#pragma once

#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>

namespace unshard {

/// After fork(), in the child. Does `work` and ends the process: well, or (it threw) not. A crash prints nothing and leaves no core.
template <class Work>
[[noreturn]] void end_as_child(const Work& work) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  for (const int number : {SIGSEGV, SIGBUS, SIGABRT, SIGFPE, SIGILL, SIGXCPU}) std::signal(number, SIG_DFL);  // MPI's print a stack
  const rlimit no_core{0, 0};
  ::setrlimit(RLIMIT_CORE, &no_core);
  try {
    work();
  } catch (...) {
    ::_exit(1);
  }
  ::_exit(0);
}

/// Waits for the child. Whether it ended well.
[[nodiscard]] inline bool ends_well(pid_t child) {
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

}  // namespace unshard
