// MPI from start to end, and the program's last step: one line, one exit code.
#pragma once

#include <mpi.h>

#include <memory>
#include <string>

#include "launcher.h"
#include "lifeline.h"
#include "unshard/comm.h"
#include "unshard/error.h"

namespace unshard {

/// How a command ended on this rank. `code` 0: well.
struct Ending {
  int code = 0;
  std::string text;
};

class Runtime {
 public:
  /// Collective. Starts MPI if a launcher started several tasks; otherwise there is one rank and MPI is not touched. Throws Error(mpi) when
  /// the launcher's tasks did not find each other.
  explicit Runtime(const Launch& launch);
  ~Runtime();
  Runtime(const Runtime&) = delete;
  Runtime& operator=(const Runtime&) = delete;

  [[nodiscard]] Comm& comm() { return *comm_; }

  /// Collective. All ranks meet, rank 0 prints the error line, if any, MPI ends, and every rank gets the same exit code. A rank that has
  /// failed where the others have not (they wait in a collective call that it never enters) waits a few seconds, prints its line and ends
  /// the job.
  [[nodiscard]] int finish(const Ending& mine);

 private:
  [[nodiscard]] Ending common_ending(const Ending& mine);
  void meet(const Ending& mine);

  std::unique_ptr<Lifeline> lifeline_;  // first, so that it ends last: a rank may die while MPI ends
  bool uses_mpi_ = false;
  MPI_Comm closing_ = MPI_COMM_NULL;  // nothing else is ever sent here
  std::unique_ptr<Comm> comm_;
};

/// Local. Prints `unshard: error: <text>` as one line on stderr.
void print_error(const std::string& text);

/// Local. From now on std::terminate ends the whole job, not only this rank.
void end_job_on_terminate();

}  // namespace unshard
