// What the nodes of the job disagree about, for the files that matter.
#pragma once

#include <vector>

#include "unshard/source.h"

namespace unshard {

/// Local, pure. Throws Error(bad_input) for a file with a problem; notes the other copies of each.
void check_files(const Tree& tree, std::vector<ShardFile>& files);

}  // namespace unshard
