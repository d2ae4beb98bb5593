// Libraries of this program that are loaded when they are needed first: what they are linked with takes longer to load than a small
// command runs.
#pragma once

#include <string>

namespace unshard {

/// Local. The function `entry` of the library `name`, which is searched beside the program, where `cmake --install` puts libraries, one
/// folder up (programs of the tests), then where the system looks. Throws Error(internal) naming what was tried; `what` it is for.
[[nodiscard]] void* load_entry(const std::string& name, const char* entry, const std::string& what);

}  // namespace unshard
