// Notices that another rank has died. mpirun ends a job by itself then; srun only with --kill-on-bad-exit, and MPI would wait for ever.
//
// The ranks form a ring: each has a TCP connection to the next. Whoever leaves in order says so; a connection that ends without that word
// means that the neighbour has died, however that happened. A rank that stands still (SIGSTOP, a slow disk) keeps its connections.
#pragma once

#include <functional>
#include <memory>

#include "unshard/comm.h"

namespace unshard {

class Lifeline {
 public:
  /// What a rank does when another one has died, in a thread of the lifeline. It normally ends the process, which its other neighbour
  /// notices in turn. `speaks`: this rank is the one that tells the user; `rank` is the one that died.
  using OnLoss = std::function<void(int rank, bool speaks)>;

  /// Collective. Where a connection can't be made within a second or two (a firewall), that neighbour is not watched.
  Lifeline(Comm& comm, OnLoss on_loss);
  /// Local. Leaves in order: every rank must have come so far that none needs the others any more.
  ~Lifeline();
  Lifeline(const Lifeline&) = delete;
  Lifeline& operator=(const Lifeline&) = delete;

  /// Local. How many of the two neighbours are watched.
  [[nodiscard]] int watched() const;
  /// Local. Cuts the connections as if this process had died, for tests; from on_loss too.
  void die();

 private:
  class Ring;
  std::unique_ptr<Ring> ring_;
};

}  // namespace unshard
