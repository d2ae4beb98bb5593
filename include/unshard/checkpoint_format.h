// Extension point: an input format is one file src/formats/<name>.cpp and one row of the table in src/formats/formats.cpp.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "unshard/catalog.h"
#include "unshard/source.h"

namespace unshard {

class CheckpointFormat {
 public:
  virtual ~CheckpointFormat() = default;
  [[nodiscard]] virtual std::string_view name() const = 0;         ///< of --backend: "fsdp"
  [[nodiscard]] virtual std::string_view description() const = 0;  ///< one line
  /// Local, pure. Whether `folder` itself (not a folder below it) holds files of this format, by names and sizes only.
  [[nodiscard]] virtual bool recognises(const Tree& tree, const std::string& folder) const = 0;
  /// Local, pure. The checkpoint in `folders` (several when its parts lie on several disks). Missing and surplus files are findings; throws
  /// Error(bad_input) where the folder says contradictory things.
  [[nodiscard]] virtual Source describe(const Tree& tree, const std::vector<std::string>& folders) const = 0;
  /// Local. The headers of one file; no tensor data. Throws Error whose text starts with the file's label.
  [[nodiscard]] virtual ShardContents read_headers(const Source& source, FileId file, File& open_file) const = 0;
};

/// The table of formats. Local.
[[nodiscard]] std::span<const CheckpointFormat* const> checkpoint_formats();
[[nodiscard]] const CheckpointFormat& format_named(std::string_view name);

/// Local, pure. Finds the checkpoint below the tree's roots by the rules of cli.md (the folder itself, the step folder above it, the run
/// folder with its tracker). `backend` "auto" or a format's name. Throws Error(bad_input): none found (saying what was), several candidates
/// (listing them), a bad tracker.
[[nodiscard]] Source discover(const Tree& tree, std::string_view backend);

}  // namespace unshard
