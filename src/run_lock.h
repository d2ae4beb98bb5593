// One run at a time on a target: a lock file in the partial folder, `.unshard-lock`, that says who holds it. The kernel ends the lock with
// the process, so a killed run leaves none.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "unshard/file_system.h"

namespace unshard {

inline constexpr std::string_view lock_file_name = ".unshard-lock";

/// Local. Takes the lock of `folder`, which exists, for this process on `host`. Throws Error(usage) naming the host, process and Slurm job
/// of the run that has it. Where the file system has no locks, what the file says decides.
[[nodiscard]] std::unique_ptr<FileLock> lock_folder(FileSystem& files, const std::string& folder, const std::string& host);

}  // namespace unshard
