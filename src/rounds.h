// The move in rounds: for files that several ranks write collectively, and where one rank reads what another one writes.
#pragma once

#include "move_state.h"

namespace unshard {

/// Collective. Writes the rank's runs, wave by wave, in the same number of rounds on every rank.
void move_in_rounds(MoveState& state);

/// Local, pure; the same on every rank. Whether the ranks of a group write its file by collective calls.
[[nodiscard]] bool writes_collectively(const Group& group, const Comm& comm, IoMode io);

}  // namespace unshard
