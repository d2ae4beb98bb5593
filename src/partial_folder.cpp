// The partial folder: made, or found again; its files with their final sizes and headers.
#include "partial_folder.h"

#include <algorithm>
#include <set>

#include "command_identity.h"
#include "resume.h"
#include "run_lock.h"
#include "unshard/agree.h"
#include "unshard/error.h"
#include "unshard/publish.h"
#include "value_bytes.h"

namespace unshard {
namespace {

constexpr std::uint64_t command_limit_bytes = std::uint64_t{1} << 16;
constexpr std::uint64_t complete_limit_bytes = 64;

[[noreturn]] void refuse(const std::string& path, const std::string& what) {
  throw Error(ErrorCode::usage, printable(path, 4096) + ": " + what);
}

void require_command(const std::string& folder, const std::optional<std::string>& found) {
  if (!found) refuse(folder, "was not made by this program (it holds no " + std::string(command_file_name) + "); remove it");
}

void check_command(const std::string& folder, const std::optional<std::string>& found, const std::string& fingerprint,
                   const std::string& advice) {
  require_command(folder, found);
  if (*found != fingerprint) refuse(folder, "belongs to another command: " + difference_of_commands(*found, fingerprint) + "; " + advice);
}

std::string partial_path(const TargetFolder& target, const OutputFile& file) {
  return join_path(target.partial, partial_name(file));
}

/// Whether the file is there with the size and the header that the plan gives it.
bool is_whole(FileSystem& files, const std::string& path, const OutputFile& file) {
  const auto status = files.status(path);
  if (!status || status->kind != FileKind::file || status->size_bytes != file.size_bytes) return false;
  return has_header(*files.open_for_reading(path), file);
}

/// Stage 1 left the files that stage 2 completes: with this size and header.
void check_left_files(FileSystem& files, const TargetFolder& target, const Plan& plan) {
  for (const OutputFile& file : plan.layout.files) {
    const std::string path = partial_path(target, file);
    const auto status = files.status(path);
    if (!status) refuse(path, "is missing; run --stage 1 again");
    if (status->size_bytes != file.size_bytes) {
      refuse(path, "has " + std::to_string(status->size_bytes) + " bytes, " + std::to_string(file.size_bytes) +
                       " were expected; run --stage 1 again");
    }
    if (!is_whole(files, path, file)) refuse(path, "holds other tensors than this command writes; run --stage 1 again");
  }
}

/// What makes a folder loadable goes before its weights do.
void remove_config_and_indexes(FileSystem& files, const std::string& folder) {
  for (const FolderEntry& entry : files.list(folder))
    if (entry.name == "config.json" || entry.name.ends_with(".index.json")) files.remove_file(join_path(folder, entry.name));
}

/// A run that was killed while publishing has given some files their final names already, in the partial folder or in a target that it
/// had marked as its own. They go on from where they are: what is in them is compared before it counts.
void take_back_published(FileSystem& files, const TargetFolder& target, const Plan& plan, const std::string& fingerprint) {
  const bool is_marked = target.existed && command_of(files, target.path) == fingerprint;
  for (const OutputFile& file : plan.layout.files) {
    const std::string path = partial_path(target, file);
    if (files.status(path)) continue;
    for (const std::string& folder : {target.partial, is_marked ? target.path : target.partial}) {
      const std::string published = join_path(folder, file.name);
      if (!is_whole(files, published, file)) continue;
      if (folder == target.path) remove_config_and_indexes(files, folder);
      files.rename(published, path);
      break;
    }
  }
}

/// Whether files of `kept` lie in the folder of this name.
bool leads_to_kept(const std::set<std::string>& kept, const std::string& folder) {
  const auto first = kept.lower_bound(folder + "/");
  return first != kept.end() && first->starts_with(folder + "/");
}

/// Removes everything in the partial folder but `kept` (names in it, those of adapters with their folder) and journals.
void remove_others(FileSystem& files, const TargetFolder& target, const std::set<std::string>& kept, bool keep_journals,
                   const std::string& below = "") {
  for (const FolderEntry& entry : files.list(below.empty() ? target.partial : join_path(target.partial, below))) {
    const std::string name = below.empty() ? entry.name : join_path(below, entry.name);
    const bool is_journal = below.empty() && entry.status.kind == FileKind::file && parse_journal_name(entry.name);
    if (kept.contains(name) || (keep_journals && is_journal)) continue;
    const std::string path = join_path(target.partial, name);
    if (entry.status.kind == FileKind::folder && leads_to_kept(kept, name))
      remove_others(files, target, kept, keep_journals, name);
    else if (entry.status.kind == FileKind::folder)
      files.remove_folder(path);
    else
      files.remove_file(path);
  }
}

/// Starts anew. The command file stays, or is replaced in one step: a folder without it would be nobody's.
void empty_partial(FileSystem& files, const TargetFolder& target, const std::string& fingerprint) {
  remove_others(files, target, {std::string(command_file_name), std::string(lock_file_name)}, false);
  write_command(files, target.partial, fingerprint);
}

/// What is in the folder that is there, once its lock is held. Returns which files stay.
std::vector<std::uint8_t> examine_partial(FileSystem& files, const TargetFolder& target, const Plan& plan, const PartialOptions& options) {
  std::vector<std::uint8_t> found(plan.layout.files.size(), 0);
  const auto command = command_of(files, target.partial);
  if (!is_as_good_as_empty(files, target.partial)) require_command(target.partial, command);
  const bool is_same = command && *command == options.fingerprint;
  if (!options.restart || options.stage_2)
    for (const OutputFile& file : plan.layout.files) check_no_link_to(files, target.partial, file.name);
  if (options.stage_2) {
    check_command(target.partial, command, options.fingerprint, "give the options of stage 1, or run --stage 1 again");
    if (!files.status(join_path(target.partial, stage_1_file_name)))
      refuse(target.partial, "stage 1 did not end there; run --stage 1 again");
    take_back_published(files, target, plan, options.fingerprint);
    check_left_files(files, target, plan);
    if (options.restart) remove_journals(files, target.partial, 2);
    found.assign(found.size(), 1);
  } else if (options.restart || !command) {
    empty_partial(files, target, options.fingerprint);
  } else if (is_same) {
    take_back_published(files, target, plan, options.fingerprint);
    for (std::size_t i = 0; i < found.size(); ++i) {
      const OutputFile& file = plan.layout.files[i];
      found[i] = is_whole(files, partial_path(target, file), file) ? 1 : 0;
    }
  } else {
    check_command(target.partial, command, options.fingerprint, "finish that command first, or give --restart to start anew");
  }
  std::set<std::string> kept{std::string(command_file_name), std::string(lock_file_name)};
  if (options.stage_2) kept.insert(std::string(stage_1_file_name));  // stage 1 has to end once more before stage 2 may go on from it
  for (std::size_t i = 0; i < found.size(); ++i)
    if (found[i] != 0) kept.insert(partial_name(plan.layout.files[i]));
  remove_others(files, target, kept, true);
  return found;
}

void check_space(FileSystem& files, const TargetFolder& target, const Plan& plan, const std::vector<std::uint8_t>& found) {
  std::uint64_t needed = 0;
  for (std::size_t i = 0; i < found.size(); ++i) needed += found[i] != 0 ? 0 : plan.layout.files[i].size_bytes;
  std::string folder = parent_path(target.path);
  while (!files.status(folder) && folder != "/" && folder != ".") folder = parent_path(folder);
  const std::uint64_t free = files.free_bytes(folder);
  if (free >= needed) return;
  throw Error(ErrorCode::no_space, printable(target.path, 4096) + ": " + std::to_string(needed) +
                                       " bytes are to be written, but the file system has only " + std::to_string(free) +
                                       " free; free space or choose another --target-dir");
}

/// Returns whether the space of every file is reserved. Without enough space (a quota) nothing stays that takes the rest of it.
bool make_files(FileSystem& files, const TargetFolder& target, const Plan& plan, const std::vector<std::uint8_t>& found) {
  bool reserved = true;
  std::size_t number = 0;
  try {
    for (; number < found.size(); ++number) {
      const OutputFile& file = plan.layout.files[number];
      if (file.name.find('/') != std::string::npos) files.make_folder(parent_path(partial_path(target, file)));
      const auto open = files.open_for_writing(partial_path(target, file), found[number] == 0);
      reserved = open->reserve(file.size_bytes) && reserved;  // of a file that was there, too: it may have holes
      if (found[number] == 0) open->write_at(0, std::as_bytes(std::span(file.header)));
    }
  } catch (const Error&) {
    const bool continues = std::any_of(found.begin(), found.end(), [](std::uint8_t f) { return f != 0; });
    (void)attempt([&] {  // the first error is the one to report
      if (!continues) files.remove_folder(target.partial);
      for (std::size_t i = 0; continues && i <= number; ++i)
        if (found[i] == 0) files.remove_file(partial_path(target, plan.layout.files[i]));
    });
    throw;
  }
  return reserved;
}

/// Whether a run of this command was killed after its last rename, with the same files beside the weights.
bool is_complete(FileSystem& files, const TargetFolder& target, const Plan& plan, const PartialOptions& options) {
  if (!target.existed || files.status(target.partial) || command_of(files, target.path) != options.fingerprint) return false;
  const std::string mark = join_path(target.path, complete_file_name);
  if (!files.status(mark) || read_small_file(files, mark, complete_limit_bytes) != options.beside) return false;
  return std::all_of(plan.layout.files.begin(), plan.layout.files.end(),
                     [&](const OutputFile& file) { return is_whole(files, join_path(target.path, file.name), file); });
}

/// Nothing is written into a folder of somebody else, not even a lock. A folder with a lock is judged once that is held: the run that holds
/// it may be making or publishing the rest.
void check_is_ours(FileSystem& files, const std::string& folder) {
  if (files.status(join_path(folder, lock_file_name)) || is_as_good_as_empty(files, folder)) return;
  require_command(folder, command_of(files, folder));
}

/// Of the leader: takes the folder for this command.
void take_partial(FileSystem& files, const TargetFolder& target, const Plan& plan, const PartialOptions& options, const std::string& host,
                  OpenedPartial& opened) {
  if (target.existed && !target.overwrite) {
    const auto left = command_of(files, target.path);
    if (left) check_command(target.path, left, options.fingerprint, "repeat that command, or give --overwrite to replace the model in it");
  }
  if (!options.restart && is_complete(files, target, plan, options)) {
    remove_marks(files, target.path);
    opened.is_published = true;
    return;
  }
  const auto status = files.status(target.partial);
  if (status && status->kind != FileKind::folder) refuse(target.partial, "is a file, but the files of this run must grow there; remove it");
  if (!status && options.stage_2) refuse(target.partial, "is not there; run --stage 1 first, with the same options");
  if (files.canonical(target.partial) != target.partial)
    refuse(target.partial, "is a link, but the files of this run must grow beside the target; remove it");
  if (status) check_is_ours(files, target.partial);
  const bool is_new = !status;
  if (is_new) check_space(files, target, plan, std::vector<std::uint8_t>(plan.layout.files.size(), 0));
  files.make_folder(target.partial);
  opened.lock = lock_folder(files, target.partial, host);
  opened.found = examine_partial(files, target, plan, options);
  if (!is_new) check_space(files, target, plan, opened.found);
}

}  // namespace

std::string partial_name(const OutputFile& file) {
  return file.name + std::string(growing_suffix);
}

std::optional<std::string> command_of(FileSystem& files, const std::string& folder) {
  const std::string path = join_path(folder, command_file_name);
  if (!files.status(path)) return std::nullopt;
  std::string text = read_small_file(files, path, command_limit_bytes);
  while (!text.empty() && text.back() == '\n') text.pop_back();
  return text;
}

void write_command(FileSystem& files, const std::string& folder, const std::string& command) {
  const std::string path = join_path(folder, command_file_name), growing = path + std::string(growing_suffix);
  write_small_file(files, growing, command + "\n");
  files.rename(growing, path);
}

void remove_marks(FileSystem& files, const std::string& target) {
  remove_journals(files, target, 0);
  for (const std::string_view name : {stage_1_file_name, lock_file_name, complete_file_name, command_file_name})
    files.remove_file(join_path(target, name));
  files.sync_folder(target);
}

bool has_header(File& file, const OutputFile& output) {
  std::string header(output.header.size(), '\0');
  file.read_at(0, std::as_writable_bytes(std::span(header)));
  return header == output.header;
}

bool is_as_good_as_empty(FileSystem& files, const std::string& folder) {
  const std::string unfinished = std::string(command_file_name) + std::string(growing_suffix);
  const std::vector<FolderEntry> entries = files.list(folder);
  return std::all_of(entries.begin(), entries.end(),
                     [&](const FolderEntry& entry) { return entry.name == unfinished || entry.name == lock_file_name; });
}

void write_small_file(FileSystem& files, const std::string& path, std::string_view content) {
  const auto file = files.open_for_writing(path, true);
  file->write_at(0, std::as_bytes(std::span(content)));
  file->sync();
}

OpenedPartial open_partial(Comm& comm, FileSystem& files, const TargetFolder& target, const Plan& plan, const PartialOptions& options) {
  OpenedPartial opened;
  collectively(comm, "target", [&] {
    if (comm.rank() == target.leader) take_partial(files, target, plan, options, comm.host_of(target.leader), opened);
  });
  opened.is_published = comm.reduce_all(opened.is_published ? 1 : 0, Reduction::max) != 0;
  if (opened.is_published) return opened;
  Bytes found = bytes_of(opened.found);
  comm.broadcast(found, target.leader);
  opened.found.clear();
  append_values(opened.found, found);
  const bool continues = std::any_of(opened.found.begin(), opened.found.end(), [](std::uint8_t f) { return f != 0; });
  // The same on every rank.
  const auto unseen = attempt([&] { check_seen_by_writers(comm, files, join_path(target.partial, command_file_name), target); });
  if (unseen) {
    if (!continues && comm.rank() == target.leader) (void)attempt([&] { files.remove_folder(target.partial); });
    throw Error(*unseen);
  }
  const bool reserved =
      collectively(comm, "target", [&] { return comm.rank() != target.leader || make_files(files, target, plan, opened.found); });
  if (comm.reduce_all(reserved ? 1 : 0, Reduction::min) == 0)
    opened.notes.push_back("The file system of " + printable(target.path, 4096) +
                           " can't reserve space: a full disk would be noticed only while writing");
  return opened;
}

}  // namespace unshard
