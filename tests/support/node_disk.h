// NodeFiles for tests of commands: the namespace it lies in has the name of one of them.
#pragma once

#include <memory>
#include <string>

#include "unshard/file_system.h"

namespace unshard::testing {

/// The real disk with the folder `disk` as its root.
[[nodiscard]] std::unique_ptr<FileSystem> node_disk(const std::string& disk);

}  // namespace unshard::testing
