// Whether a move did what a dry run says.
#pragma once

#include <gtest/gtest.h>

#include "move_needs.h"
#include "unshard/comm.h"
#include "unshard/move.h"

namespace unshard::test {

/// Collective. `report`: of this rank.
inline void expect_as_foreseen(Comm& comm, const MoveNeeds& needs, const MoveReport& report) {
  EXPECT_EQ(needs.read_bytes, comm.reduce_all(report.read_bytes, Reduction::sum));
  EXPECT_EQ(needs.messages, comm.reduce_all(report.messages, Reduction::sum));
  EXPECT_EQ(needs.exchanged_bytes, comm.reduce_all(report.exchanged_bytes, Reduction::sum));
}

}  // namespace unshard::test
