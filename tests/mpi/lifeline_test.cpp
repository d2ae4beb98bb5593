// Ranks notice that another one has died, and not that one stands still or leaves in order.
#include "lifeline.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "unshard/mpi/comm.h"

namespace unshard {
namespace {

using namespace std::chrono_literals;

/// What on_loss was told.
struct Told {
  std::atomic<int> rank = -1;
  std::atomic<bool> speaks = false;
};

TEST(Lifeline, WatchesBothNeighbours) {
  const auto comm = mpi_comm(MPI_COMM_WORLD);
  Told told;
  const Lifeline lifeline(*comm, [&](int rank, bool) { told.rank = rank; });
  EXPECT_EQ(lifeline.watched(), 2);
}

TEST(Lifeline, LeavingInOrderIsNoLoss) {
  const auto comm = mpi_comm(MPI_COMM_WORLD);
  Told told;
  auto lifeline = std::make_unique<Lifeline>(*comm, [&](int rank, bool) { told.rank = rank; });
  comm->barrier();
  if (comm->rank() != 0) {
    lifeline.reset();
  } else {
    std::this_thread::sleep_for(2s);
  }
  comm->barrier();
  lifeline.reset();
  EXPECT_EQ(told.rank, -1);
}

TEST(Lifeline, TheDeathOfOneIsToldToAllAndSpokenOfOnce) {
  const auto comm = mpi_comm(MPI_COMM_WORLD);
  if (comm->size() == 1) GTEST_SKIP() << "needs another rank";
  Told told;
  Lifeline* own = nullptr;
  Lifeline lifeline(*comm, [&](int rank, bool speaks) {
    told.speaks = speaks;
    told.rank = rank;
    own->die();  // a process would end here
  });
  own = &lifeline;
  comm->barrier();
  const int last = comm->size() - 1;
  if (comm->rank() == last) lifeline.die();
  for (int tries = 0; comm->rank() != last && told.rank < 0 && tries < 500; ++tries) std::this_thread::sleep_for(10ms);
  comm->barrier();
  EXPECT_EQ(told.rank >= 0, comm->rank() != last);
  EXPECT_EQ(comm->reduce_all(told.speaks ? 1 : 0, Reduction::sum), 1U);
  if (told.speaks) {
    EXPECT_EQ(told.rank, last);
  }
}

}  // namespace
}  // namespace unshard
