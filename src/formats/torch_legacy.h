// The stream that torch.save wrote before 1.6, and still writes with _use_new_zipfile_serialization=False or inside a plain pickle.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "formats/torch_rebuild.h"
#include "formats/torch_storage.h"
#include "unshard/file_system.h"

namespace unshard {

/// Local. Whether a file that begins with `head` is such a stream.
[[nodiscard]] bool is_legacy_stream(std::span<const std::byte> head);

/// Local. Throws Error(bad_input | unsupported) whose text starts with `label`.
[[nodiscard]] PickledFile read_legacy_stream(File& file, const std::string& label);

/// Local. The stream of one bare storage that lies in `bytes`, which is at `position` of the file (torch.storage._load_from_bytes). Throws
/// Error(bad_input) or Unreadable; neither text names a file.
[[nodiscard]] Storage storage_in_legacy_stream(std::span<const std::byte> bytes, std::uint64_t position);

}  // namespace unshard
