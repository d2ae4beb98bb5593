// The move in rounds: for files that several ranks write collectively, and where one rank reads what another one writes.
#pragma once

#include "move_state.h"

namespace unshard {

/// Collective. Writes the rank's runs, wave by wave, in the same number of rounds on every rank.
void move_in_rounds(MoveState& state);

}  // namespace unshard
