// The target folder is complete or absent. Files grow in `DIR.unshard-partial` beside the target; publishing makes them visible.
#pragma once

#include <string>
#include <vector>

#include "unshard/comm.h"
#include "unshard/file_system.h"
#include "unshard/output_format.h"
#include "unshard/plan.h"

namespace unshard {

/// A file copied byte by byte from the folder with config.json.
struct Asset {
  std::string name;  ///< may have one folder part: additional_chat_templates/x.jinja
  std::string path;
};

/// Local. The files of `config_folder` that a loader or tokenizer uses: all but weights, indexes, adapters and training state. Throws
/// Error(bad_input) naming one that can't be read (dead link), and a generation_config.json that is no JSON object.
[[nodiscard]] std::vector<Asset> list_assets(FileSystem& files, const std::string& config_folder);

/// Local. Whether a file of this name is of a kind that a merge writes or copies, so that --overwrite removes it.
[[nodiscard]] bool is_our_kind(const std::string& name);

struct TargetFolder {
  std::string path;     ///< absolute, resolved
  std::string partial;  ///< path + ".unshard-partial"
  bool overwrite = false;
  bool existed = false;  ///< the target exists: files are moved in; otherwise one rename
};

/// Collective. Checks the target before any work: not inside a source folder nor one itself (links resolved), empty or absent unless `overwrite`, its parent
/// writable, enough space, no partial folder of another command (its `command` file holds the fingerprint). Throws Error(usage | io | no_space).
/// `writes` false (--dry-run): checks only, creates nothing.
[[nodiscard]] TargetFolder check_target_folder(Comm& comm, FileSystem& files, const std::string& target, const std::vector<std::string>& sources, bool overwrite);

/// Collective. Makes the partial folder and the plan's files in it with their final sizes and headers; `fingerprint` says which command it belongs to.
/// `continuing` (--stage 2): the folder must exist with this fingerprint; else what is there of the same command is started anew.
void open_partial(Comm& comm, FileSystem& files, const TargetFolder& target, const Plan& plan, const std::string& fingerprint, bool continuing);

/// Collective. Small files and assets written, everything synced, moved into place, folders synced: weights first, config.json and indexes last.
void publish(Comm& comm, FileSystem& files, const TargetFolder& target, const Plan& plan, const std::vector<Asset>& assets, const std::vector<SmallFile>& small_files,
             const std::vector<SmallFile>& last_files);

}  // namespace unshard
