// Internal: what target_folder.cpp, partial_folder.cpp and publish.cpp share.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "unshard/comm.h"
#include "unshard/file_system.h"
#include "unshard/publish.h"

namespace unshard {

/// The file that says which command a folder belongs to: in the partial folder from its first moment, in the target while it is published.
/// Its name is hidden, so that no asset (those are never hidden files) can collide with it.
inline constexpr std::string_view command_file_name = ".unshard-command";
inline constexpr std::string_view growing_suffix = ".part";
/// In the partial folder once stage 1 of a staged merge has ended well. Hidden for the same reason.
inline constexpr std::string_view stage_1_file_name = ".unshard-stage-1";
/// In the target when everything has its final name: only files like these are left to be removed. Holds beside_identity().
inline constexpr std::string_view complete_file_name = ".unshard-complete";

/// Local. What the command file in `folder` says; none without one.
[[nodiscard]] std::optional<std::string> command_of(FileSystem& files, const std::string& folder);

/// Local. Writes the command file, whole or not at all: whoever is killed here leaves `.unshard-command.part` at most.
void write_command(FileSystem& files, const std::string& folder, const std::string& command);

/// Local. Whether the folder holds nothing, or only a command file that was never finished.
[[nodiscard]] bool is_as_good_as_empty(FileSystem& files, const std::string& folder);

/// Local. Removes from a target that is complete what only runs need; the command file last.
void remove_marks(FileSystem& files, const std::string& target);

/// Local. Makes or replaces a file and waits until it is on the device.
void write_small_file(FileSystem& files, const std::string& path, std::string_view content);

/// Local. Whether the first bytes of `file`, which is long enough, are the header of `output`.
[[nodiscard]] bool has_header(File& file, const OutputFile& output);

/// Local. Throws Error(usage) when a folder on the way from `folder` to the file `name` in it is a link: nothing is written through one.
void check_no_link_to(FileSystem& files, const std::string& folder, const std::string& name);

/// Collective. Throws Error(io) naming the hosts if `path`, which the leader has just made, is not seen by every rank that writes.
void check_seen_by_writers(Comm& comm, FileSystem& files, const std::string& path, const TargetFolder& target);

}  // namespace unshard
