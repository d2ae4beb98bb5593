// Extension point: an input format is one file src/formats/<name>.cpp and one row of the table in src/formats/formats.cpp.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "unshard/catalog.h"
#include "unshard/source.h"

namespace unshard {

class CheckpointFormat {
 public:
  virtual ~CheckpointFormat() = default;
  [[nodiscard]] virtual std::string_view name() const = 0;                   ///< "fsdp"
  [[nodiscard]] virtual std::string_view backend() const { return name(); }  ///< of --backend; formats of one trainer share it
  [[nodiscard]] virtual std::string_view description() const = 0;            ///< one line
  /// Local, pure. Whether `folder` itself (not a folder below it) holds files of this format, by names and sizes only.
  [[nodiscard]] virtual bool recognises(const Tree& tree, const std::string& folder) const = 0;
  /// Local, pure. Whether `folder` can be read as this format when --backend names it, although it may look more like another.
  [[nodiscard]] virtual bool fits(const Tree& tree, const std::string& folder) const { return recognises(tree, folder); }
  /// Local, pure. The checkpoint in `folders` (several when its parts lie on several disks). Missing and surplus files are findings; throws
  /// Error(bad_input) where the folder says contradictory things.
  [[nodiscard]] virtual Source describe(const Tree& tree, const std::vector<std::string>& folders) const = 0;
  /// Local. The headers of one file; no tensor data. Throws Error whose text starts with the file's label.
  [[nodiscard]] virtual ShardContents read_headers(const Source& source, FileId file, File& open_file) const = 0;
  /// Whether the files explain each other: then `place` is called with those that a rank has read, and with what all say of themselves.
  [[nodiscard]] virtual bool needs_all_files() const { return false; }
  /// Local, pure. `about`: ShardContents::about by file; empty for one that can't be read. Makes global names and boxes of the pieces.
  virtual void place(const Source& /*source*/, const std::vector<std::vector<std::byte>>& /*about*/,
                     std::vector<std::pair<FileId, ShardContents>>& /*files*/) const {}
  /// Local. What source.index_files[file] says, packed for apply_index. Throws Error whose text starts with the file's label.
  [[nodiscard]] virtual Bytes read_index(const Source& source, FileId file, File& open_file) const;
  /// Local, pure. Completes `source` by what its index files say (packed, in their order; empty: it can't be read, which is a finding
  /// already).
  virtual void apply_index(const Tree& tree, std::span<const Bytes> packed, Source& source) const;
};

/// The table of formats. Local.
[[nodiscard]] std::span<const CheckpointFormat* const> checkpoint_formats();
[[nodiscard]] const CheckpointFormat& format_named(std::string_view name);
/// Local. The formats that --backend `backend` names ("auto": all), in the order of the table. Throws Error(unsupported) for none.
[[nodiscard]] std::vector<const CheckpointFormat*> formats_for(std::string_view backend);

/// Local, pure. Finds the checkpoint below the tree's roots by the rules of cli.md (the folder itself, the step folder above it, the run
/// folder with its tracker). `backend` "auto" or a format's name. Throws Error(bad_input): none found (saying what was), several candidates
/// (listing them), a bad tracker. Where the source has index files, read_index_files completes it.
[[nodiscard]] Source discover(const Tree& tree, std::string_view backend);

/// Collective. Reads the index files of `source`, each on one rank that sees it, and completes `source` by them; nothing to do where there
/// are none. An index file that can't be read is a finding.
void read_index_files(Comm& comm, FileSystem& files, const Tree& tree, Source& source);

}  // namespace unshard
