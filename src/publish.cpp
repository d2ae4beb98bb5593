// Publishing: what has grown in the partial folder becomes the target, in an order in which a loader never sees half a model.
//
// A new target appears by one rename of the partial folder. In a target that exists, the old config.json and indexes go first, then the
// rest of the old model; weights and assets are renamed in; the new indexes and config.json come last. The command file lies in the target
// from before the first change until after the last, so that a run that was killed in between can be repeated.
#include <algorithm>
#include <set>

#include "hash.h"
#include "partial_folder.h"
#include "unshard/agree.h"
#include "unshard/error.h"
#include "unshard/publish.h"

namespace unshard {
namespace {

constexpr std::string_view config_name = "config.json";
constexpr std::string_view index_suffix = ".index.json";
constexpr std::string_view template_folder = "additional_chat_templates";
constexpr std::string_view adapter_folder = "lora_adapter";
constexpr std::size_t copy_bytes = std::size_t{1} << 20;

/// Small files are renamed from this, when they are what makes a folder loadable.
std::string growing(const std::string& name) {
  return name + std::string(growing_suffix);
}

bool is_safe_name(const std::string& name) {
  const std::string_view file = base_name(name);
  const std::string_view folder = file.size() == name.size() ? "" : std::string_view(name).substr(0, name.size() - file.size() - 1);
  // Files of adapters lie at most two folders down (adapters by name), none of them hidden or a way out.
  const bool is_adapters = std::count(folder.begin(), folder.end(), '/') <= 1 && !folder.starts_with('/') && !folder.starts_with('.') &&
                           folder.find("/.") == std::string_view::npos && folder.find("//") == std::string_view::npos &&
                           file.starts_with("adapter_");
  const bool is_below = folder.empty() || folder == template_folder || is_adapters;
  return !file.empty() && file != "." && file != ".." && is_below && name.find('\0') == std::string::npos;
}

void copy_file(FileSystem& files, const std::string& from, const std::string& to) {
  const auto source = files.open_for_reading(from);
  const auto target = files.open_for_writing(to, true);
  std::vector<std::byte> buffer(static_cast<std::size_t>(std::min<std::uint64_t>(source->size(), copy_bytes)));
  for (std::uint64_t position = 0; position < source->size();) {
    const std::span piece(buffer.data(), static_cast<std::size_t>(std::min<std::uint64_t>(source->size() - position, buffer.size())));
    source->read_at(position, piece);
    target->write_at(position, piece);
    position += piece.size();
  }
  target->sync();
}

/// What appears in the target besides the weights.
struct Names {
  std::vector<std::string> beside;
  std::vector<std::string> last;  ///< indexes, then config.json: what makes the folder loadable
};

Names names_of(const std::vector<Asset>& assets, const std::vector<SmallFile>& last_files) {
  Names names;
  std::set<std::string> seen;
  const auto add = [&](const std::string& name, std::vector<std::string>& to) {
    if (!is_safe_name(name)) throw Error(ErrorCode::internal, printable(name) + ": is no name for a file of the target folder");
    if (seen.insert(name).second) to.push_back(name);
  };
  for (const SmallFile& file : last_files) add(file.name, names.last);
  std::stable_partition(names.last.begin(), names.last.end(), [](const std::string& name) { return name != config_name; });
  for (const Asset& asset : assets) add(asset.name, names.beside);
  return names;
}

bool is_written_anew(const Asset& asset, const Names& names) {
  return std::find(names.last.begin(), names.last.end(), asset.name) != names.last.end();
}

void copy_assets(FileSystem& files, const std::string& folder, const std::vector<Asset>& assets, const Names& names) {
  for (const Asset& asset : assets) {
    if (is_written_anew(asset, names)) continue;
    const std::string path = join_path(folder, asset.name);
    files.make_folder(parent_path(path));
    copy_file(files, asset.path, path);
  }
}

/// Collective. From a rank that sees the assets, but not the target, to the leader, piece by piece.
void send_assets(Comm& comm, FileSystem& files, const TargetFolder& target, const std::vector<Asset>& assets, int reader,
                 const Names& names) {
  for (const Asset& asset : assets) {
    if (is_written_anew(asset, names)) continue;
    std::unique_ptr<File> from, to;
    collectively(comm, "publish", [&] {
      if (comm.rank() == reader) from = files.open_for_reading(asset.path);
      if (comm.rank() != target.leader) return;
      const std::string path = join_path(target.partial, asset.name);
      files.make_folder(parent_path(path));
      to = files.open_for_writing(path, true);
    });
    const std::uint64_t size = comm.reduce_all(from ? from->size() : 0, Reduction::max);
    for (std::uint64_t position = 0; position < size; position += copy_bytes) {
      Bytes piece(static_cast<std::size_t>(std::min<std::uint64_t>(size - position, copy_bytes)));
      collectively(comm, "publish", [&] {
        if (from) from->read_at(position, piece);
      });
      comm.broadcast(piece, reader);
      collectively(comm, "publish", [&] {
        if (to) to->write_at(position, piece);
      });
    }
    collectively(comm, "publish", [&] {
      if (to) to->sync();
    });
  }
}

/// The folder, and those in it that hold files of the model.
void sync_folders(FileSystem& files, const std::string& folder, const Plan& plan, const Names& names) {
  std::set<std::string> inner;
  const auto add = [&](const std::string& name) {
    if (name.find('/') != std::string::npos) inner.insert(parent_path(join_path(folder, name)));
  };
  for (const OutputFile& file : plan.layout.files) add(file.name);
  for (const auto* list : {&names.beside, &names.last})
    for (const std::string& name : *list) add(name);
  for (const std::string& path : inner) files.sync_folder(path);
  files.sync_folder(folder);
}

void appear_as_new(FileSystem& files, const TargetFolder& target, const Plan& plan, const Names& names, const std::string& identity) {
  for (const OutputFile& file : plan.layout.files) {
    files.rename(join_path(target.partial, partial_name(file)), join_path(target.partial, file.name));
  }
  for (const std::string& name : names.last) files.rename(join_path(target.partial, growing(name)), join_path(target.partial, name));
  sync_folders(files, target.partial, plan, names);
  write_small_file(files, join_path(target.partial, complete_file_name), identity);
  files.sync_folder(target.partial);
  try {
    files.rename(target.partial, target.path);
  } catch (const Error& error) {
    if (!files.status(target.path)) throw;
    throw Error(ErrorCode::usage,
                std::string(error.what()) + ": something has appeared there meanwhile; remove it, and start the same command again");
  }
  remove_marks(files, target.path);
  files.sync_folder(parent_path(target.path));
}

/// Files of our kinds below the target: what makes it loadable first.
std::vector<std::string> old_files(FileSystem& files, const std::string& folder) {
  std::vector<std::string> names;
  for (const FolderEntry& entry : files.list(folder)) {
    const std::string path = join_path(folder, entry.name);
    if (entry.status.kind != FileKind::folder) {
      if (is_our_kind(entry.name)) names.push_back(entry.name);
    } else if ((entry.name == template_folder || entry.name == adapter_folder) && files.canonical(path) == path) {  // no link is entered
      for (const FolderEntry& inner : files.list(path)) {
        const std::string name = join_path(entry.name, inner.name);
        if (inner.status.kind != FileKind::folder && is_our_kind(name)) names.push_back(name);
      }
    }
  }
  std::stable_partition(names.begin(), names.end(),
                        [](const std::string& name) { return name == config_name || name.ends_with(index_suffix); });
  return names;
}

/// The command file goes last: a folder without it would be nobody's.
void remove_partial(FileSystem& files, const std::string& folder) {
  for (const FolderEntry& entry : files.list(folder)) {
    if (entry.name != command_file_name && entry.status.kind != FileKind::folder) files.remove_file(join_path(folder, entry.name));
  }
  files.remove_folder(folder);
}

void move_into(FileSystem& files, const TargetFolder& target, const Plan& plan, const Names& names, const std::string& identity) {
  const auto mine = command_of(files, target.partial);
  if (!target.overwrite && !is_as_good_as_empty(files, target.path) && command_of(files, target.path) != mine) {
    throw Error(ErrorCode::usage, printable(target.path, 4096) +
                                      ": something has come into the target folder since this run began; "
                                      "repeat the command with --overwrite, or with another --target-dir");
  }
  files.remove_file(join_path(target.path, complete_file_name));  // of an earlier run that was killed; it would speak of what comes now
  files.sync_folder(target.path);
  write_command(files, target.path, mine.value_or(""));
  for (const std::string& name : old_files(files, target.path)) files.remove_file(join_path(target.path, name));
  files.sync_folder(target.path);
  const auto move = [&](const std::string& from, const std::string& name) {
    const std::string path = join_path(target.path, name);
    files.make_folder(parent_path(path));
    files.rename(join_path(target.partial, from), path);
  };
  for (const OutputFile& file : plan.layout.files) move(partial_name(file), file.name);
  for (const std::string& name : names.beside) move(name, name);
  files.sync_folder(target.path);
  for (const std::string& name : names.last) move(growing(name), name);
  sync_folders(files, target.path, plan, names);
  write_small_file(files, join_path(target.path, complete_file_name), identity);
  files.sync_folder(target.path);
  remove_partial(files, target.partial);
  remove_marks(files, target.path);
  files.sync_folder(parent_path(target.path));
}

/// The files that this rank syncs: those that its node wrote (the leader's node wrote every header), divided among the node's ranks. What
/// an earlier run wrote may wait on any node: one that was killed has not seen to it that it is on the device.
std::vector<std::uint32_t> files_to_sync(const Comm& comm, const TargetFolder& target, const Plan& plan) {
  if (!target.writes(comm.rank())) return {};
  const int node = comm.node_of(comm.rank());
  std::set<std::uint32_t> written;
  for (const Window& range : plan.done) written.insert(range.file);
  std::size_t ranks_here = 0, mine = 0;
  for (int rank = 0; rank < comm.size(); ++rank) {
    if (comm.node_of(rank) != node) continue;
    if (rank == comm.rank()) mine = ranks_here;
    ++ranks_here;
    if (static_cast<std::size_t>(rank) >= plan.runs.size()) continue;
    for (const Run& run : plan.runs[static_cast<std::size_t>(rank)]) written.insert(run.file);
  }
  std::vector<std::uint32_t> files;
  for (std::uint32_t file = 0; file < plan.layout.files.size(); ++file) {
    if (file % ranks_here == mine && (node == comm.node_of(target.leader) || written.contains(file))) files.push_back(file);
  }
  return files;
}

/// The size, and the header, which was written before the move and is not read back by it.
void require_as_made(File& file, const OutputFile& output) {
  std::string what;
  if (file.size() != output.size_bytes)
    what = std::to_string(file.size()) + " bytes, expected " + std::to_string(output.size_bytes);
  else if (!has_header(file, output))
    what = "the header is not what was written";
  if (what.empty()) return;
  throw Error(ErrorCode::verification,
              printable(file.path(), 4096) + ": " + what + "; something else has changed the file: start the same command again");
}

/// Collective. Waits until the files in the partial folder are on the device. Their pages leave the cache: a job is charged for them.
void sync_partial(Comm& comm, FileSystem& files, const TargetFolder& target, const Plan& plan) {
  collectively(comm, "publish", [&] {
    for (const std::uint32_t file : files_to_sync(comm, target, plan)) {
      const OutputFile& output = plan.layout.files[file];
      const std::unique_ptr<File> open = files.open_for_writing(join_path(target.partial, partial_name(output)), false);
      require_as_made(*open, output);
      open->sync();
      open->drop_cache(0, output.size_bytes);
    }
  });
}

}  // namespace

std::string beside_identity(const std::vector<Asset>& assets, const std::vector<SmallFile>& last_files) {
  Hash hash;
  for (const Asset& asset : assets) {
    hash.add(asset.name);
    hash.add_all(asset.size_bytes, asset.mtime_ns);
  }
  for (const SmallFile& file : last_files) {
    hash.add(file.name);
    hash.add(file.content);
  }
  return std::to_string(hash.value());
}

void end_stage_1(Comm& comm, FileSystem& files, const TargetFolder& target, const Plan& plan) {
  sync_partial(comm, files, target, plan);
  collectively(comm, "publish", [&] {
    if (comm.rank() != target.leader) return;
    write_small_file(files, join_path(target.partial, stage_1_file_name), "");
    files.sync_folder(target.partial);
  });
}

void publish(Comm& comm, FileSystem& files, const TargetFolder& target, const Plan& plan, const std::vector<Asset>& assets,
             int asset_reader, const std::vector<SmallFile>& last_files) {
  sync_partial(comm, files, target, plan);
  const Names names = collectively(comm, "publish", [&] {
    Names all = names_of(assets, last_files);
    if (comm.rank() == asset_reader && target.writes(asset_reader)) copy_assets(files, target.partial, assets, all);
    return all;
  });
  if (!target.writes(asset_reader)) send_assets(comm, files, target, assets, asset_reader, names);
  collectively(comm, "publish", [&] {
    if (comm.rank() != target.leader) return;
    for (const SmallFile& file : last_files) {
      const std::string path = join_path(target.partial, growing(file.name));
      files.make_folder(parent_path(path));
      write_small_file(files, path, file.content);
    }
    const auto appear = target.existed ? move_into : appear_as_new;
    appear(files, target, plan, names, beside_identity(assets, last_files));
  });
}

}  // namespace unshard
