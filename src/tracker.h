// Tracker files: one line in a run folder that names the step to be loaded. `latest` (DeepSpeed) holds a folder's name;
// `latest_checkpointed_iteration.txt` (Megatron, verl) holds a number, or `release`.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace unshard {

[[nodiscard]] bool is_tracker(std::string_view file_name);

/// Local, pure. Which of `folders` a tracker with this text means. Never anything but one of them, whatever the text says.
[[nodiscard]] std::optional<std::string> tracked_folder(std::string_view text, const std::vector<std::string>& folders);

/// `text` without white space around it.
[[nodiscard]] std::string_view trimmed(std::string_view text);

}  // namespace unshard
