// The target folder is complete or absent. Files grow in `DIR.unshard-partial` beside the target; publishing makes them visible.
//
// In the partial folder weights have names that no loader's pattern matches (`model.safetensors.part`) and there is neither a config.json
// nor an index, so a killed run leaves nothing that could be loaded.
#pragma once

#include <algorithm>
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
  std::uint64_t size_bytes = 0;
  std::int64_t mtime_ns = 0;
};

/// Local. The files of `config_folder` that a loader or tokenizer uses: all but config.json (which is written anew), weights, indexes,
/// adapters, training state and hidden files; sorted by name. Throws Error(bad_input) naming one that can't be read (dead link), and a
/// generation_config.json that is no JSON object.
[[nodiscard]] std::vector<Asset> list_assets(FileSystem& files, const std::string& config_folder);

/// Local. `assets` with the tokenizer (and chat template) of the last of `folders` that has one, in place of their own. Throws like
/// list_assets.
[[nodiscard]] std::vector<Asset> with_tokenizer_of(FileSystem& files, std::vector<Asset> assets, const std::vector<std::string>& folders);

/// Local. Whether a file of this name is of a kind that a merge writes or copies, so that --overwrite removes it.
[[nodiscard]] bool is_our_kind(const std::string& name);

/// The ranks on nodes that see the place of the target write; the others only read and send.
struct TargetFolder {
  std::string path;     ///< absolute, resolved (as the leader sees it)
  std::string partial;  ///< path + ".unshard-partial"
  bool overwrite = false;
  bool existed = false;          ///< the target exists: files are moved in; otherwise one rename
  int leader = 0;                ///< the lowest rank that writes: it does what one rank does alone
  std::vector<int> blind = {};   ///< ranks that do not write; sorted
  std::string blind_hosts = {};  ///< their hosts, for the user

  [[nodiscard]] bool writes(int rank) const { return !std::binary_search(blind.begin(), blind.end(), rank); }
};

/// Collective. Finds out early that a folder stands in the existing target where one of `names` (files of the model) is to appear, or a
/// file where a folder is needed: Error(usage).
void check_places(Comm& comm, FileSystem& files, const TargetFolder& target, const std::vector<std::string>& names);

/// Collective. Throws Error(usage) naming one of `paths` (files that this rank reads) that is a link into the target: --overwrite would
/// remove what it leads to.
void check_no_link_into(Comm& comm, FileSystem& files, const TargetFolder& target, const std::vector<std::string>& paths);

/// The name that an output file has while it grows in the partial folder: no loader's pattern matches it.
[[nodiscard]] std::string partial_name(const OutputFile& file);

/// Collective. Checks the target before any work: not inside a source folder, nor one itself, nor a folder around one (links resolved, as
/// every rank sees it), a folder that is empty or absent unless `overwrite`, on the file system of the folder that it lies in, which can be
/// written. A node that has no folder where the target will lie does not see it; one that has another folder there is Error(io), naming the
/// hosts. Throws Error(usage | io). `writes` false (--dry-run): makes no probe file. Leaves nothing behind.
[[nodiscard]] TargetFolder check_target_folder(Comm& comm, FileSystem& files, const std::string& target,
                                               const std::vector<std::string>& sources, bool overwrite, bool writes = true);

/// Which command a partial folder is opened for, and what of an earlier run it may keep.
struct PartialOptions {
  std::string fingerprint;  ///< one line that says which command the folder belongs to
  bool restart = false;     ///< --restart: nothing of an earlier run, whatever command that was, stays
  bool stage_2 = false;     ///< what stage 1 left must be there, and stays
  std::string beside = {};  ///< beside_identity() of what this run will publish
};

struct OpenedPartial {
  std::vector<std::string> notes;   ///< lines for the user, the same on every rank: space that could not be reserved
  std::vector<std::uint8_t> found;  ///< by file of the plan, the same on every rank: 1 when it was there, with its size and header
  std::shared_ptr<FileLock> lock;   ///< on the leader: to be kept until the command ends
  bool is_published = false;        ///< an earlier run of the command was killed when all was done: the target is complete
};

/// Local, pure. Stands for what is published beside the weights: names, sizes and times of assets, contents of the others.
[[nodiscard]] std::string beside_identity(const std::vector<Asset>& assets, const std::vector<SmallFile>& last_files);

/// Collective. Makes the partial folder (parents too), or finds it again, takes its lock, and sees to it that it holds the plan's files
/// with their final sizes and headers, named by partial_name. Files that the same command left stay as they are (also those that it was
/// about to publish); everything else in the folder, but for journals, goes. Error(usage): another run that lives has the folder (naming
/// its host, process and Slurm job); it belongs to another command, or this program didn't make it. Error(no_space) with both numbers when
/// the files don't fit, Error(io) naming the hosts that don't see the folder.
[[nodiscard]] OpenedPartial open_partial(Comm& comm, FileSystem& files, const TargetFolder& target, const Plan& plan,
                                         const PartialOptions& options);

/// Collective. What stage 1 ends with: the files in the partial folder are on the device, every error checked, and the folder says that
/// stage 1 has written its part (a file of its full size says nothing: it has that from the start).
void end_stage_1(Comm& comm, FileSystem& files, const TargetFolder& target, const Plan& plan);

/// Collective. Everything synced, assets copied, moved into place, folders synced: weights first, `last_files` (config.json and indexes)
/// last. In a target that existed, files of our kinds are removed just before, the old config.json and indexes
/// first; others stay. `assets` are the same on every rank; `asset_reader` is one that sees them (where it does not see the
/// target, it sends them).
void publish(Comm& comm, FileSystem& files, const TargetFolder& target, const Plan& plan, const std::vector<Asset>& assets,
             int asset_reader, const std::vector<SmallFile>& last_files);

}  // namespace unshard
