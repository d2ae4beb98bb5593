// The move where every rank reads what it needs and writes its runs by itself: no messages, no rounds.
#pragma once

#include "move_state.h"

namespace unshard {

/// Collective. Writes the rank's runs, piece by piece, with its I/O threads.
void move_directly(MoveState& state);

}  // namespace unshard
