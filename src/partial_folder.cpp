// The partial folder: made, or found again; its files with their final sizes and headers.
#include "partial_folder.h"

#include <algorithm>

#include "unshard/agree.h"
#include "unshard/error.h"
#include "unshard/publish.h"

namespace unshard {
namespace {

constexpr std::uint64_t command_limit_bytes = std::uint64_t{1} << 16;

[[noreturn]] void refuse(const std::string& path, const std::string& what) {
  throw Error(ErrorCode::usage, printable(path, 4096) + ": " + what);
}

void check_command(const std::string& folder, const std::optional<std::string>& found, const std::string& fingerprint,
                   const std::string& advice) {
  if (!found) refuse(folder, "was not made by this program (it holds no " + std::string(command_file_name) + "); remove it");
  if (*found != fingerprint) refuse(folder, "belongs to another command (" + printable(*found, 1000) + "); " + advice);
}

/// Stage 1 left the files that stage 2 completes: with this size and header.
void check_left_files(FileSystem& files, const TargetFolder& target, const Plan& plan) {
  for (const OutputFile& file : plan.layout.files) {
    const std::string path = join_path(target.partial, partial_name(file));
    const auto status = files.status(path);
    if (!status) refuse(path, "is missing; run --stage 1 again");
    if (status->size_bytes != file.size_bytes) {
      refuse(path, "has " + std::to_string(status->size_bytes) + " bytes, " + std::to_string(file.size_bytes) +
                       " were expected; run --stage 1 again");
    }
    std::string header(file.header.size(), '\0');
    files.open_for_reading(path)->read_at(0, std::as_writable_bytes(std::span(header)));
    if (header != file.header) refuse(path, "holds other tensors than this command writes; run --stage 1 again");
  }
}

void continue_partial(FileSystem& files, const TargetFolder& target, const Plan& plan, const std::string& fingerprint) {
  if (!files.status(target.partial)) refuse(target.partial, "is not there; run --stage 1 first, with the same options");
  check_command(target.partial, command_of(files, target.partial), fingerprint, "give the options of stage 1, or run --stage 1 again");
  if (!files.status(join_path(target.partial, stage_1_file_name))) refuse(target.partial, "stage 1 did not end there; run --stage 1 again");
  check_left_files(files, target, plan);
}

/// Removes what the same command left; refuses anything else.
void clear_partial(FileSystem& files, const TargetFolder& target, const std::string& fingerprint) {
  const auto status = files.status(target.partial);
  if (!status) return;
  if (status->kind != FileKind::folder) refuse(target.partial, "is a file, but the files of this run must grow there; remove it");
  if (!is_as_good_as_empty(files, target.partial)) {
    check_command(target.partial, command_of(files, target.partial), fingerprint, "finish that command first, or remove the folder");
  }
  files.remove_folder(target.partial);
}

void check_space(FileSystem& files, const TargetFolder& target, const Plan& plan) {
  std::uint64_t needed = 0;
  for (const OutputFile& file : plan.layout.files) needed += file.size_bytes;
  std::string folder = parent_path(target.path);
  while (!files.status(folder) && folder != "/" && folder != ".") folder = parent_path(folder);
  const std::uint64_t free = files.free_bytes(folder);
  if (free >= needed) return;
  throw Error(ErrorCode::no_space, printable(target.path, 4096) + ": the model has " + std::to_string(needed) +
                                       " bytes, but the file system has only " + std::to_string(free) +
                                       " free; free space or choose another --target-dir");
}

/// Returns whether the space of every file is reserved. Without enough space (a quota) nothing stays that takes the rest of it.
bool make_files(FileSystem& files, const TargetFolder& target, const Plan& plan) {
  bool reserved = true;
  try {
    for (const OutputFile& file : plan.layout.files) {
      const auto open = files.open_for_writing(join_path(target.partial, partial_name(file)), true);
      reserved = open->reserve(file.size_bytes) && reserved;
      open->write_at(0, std::as_bytes(std::span(file.header)));
    }
  } catch (const Error&) {
    (void)attempt([&] { files.remove_folder(target.partial); });  // the first error is the one to report
    throw;
  }
  return reserved;
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

bool is_as_good_as_empty(FileSystem& files, const std::string& folder) {
  const std::string unfinished = std::string(command_file_name) + std::string(growing_suffix);
  const std::vector<FolderEntry> entries = files.list(folder);
  return std::all_of(entries.begin(), entries.end(), [&](const FolderEntry& entry) { return entry.name == unfinished; });
}

void write_small_file(FileSystem& files, const std::string& path, std::string_view content) {
  const auto file = files.open_for_writing(path, true);
  file->write_at(0, std::as_bytes(std::span(content)));
  file->sync();
}

std::vector<std::string> open_partial(Comm& comm, FileSystem& files, const TargetFolder& target, const Plan& plan,
                                      const std::string& fingerprint, bool continuing) {
  const std::string command = join_path(target.partial, command_file_name);
  collectively(comm, "target", [&] {
    if (comm.rank() != target.leader) return;
    if (target.existed && !target.overwrite) {
      const auto left = command_of(files, target.path);
      if (left) check_command(target.path, left, fingerprint, "repeat that command, or give --overwrite to replace the model in it");
    }
    if (continuing) {
      continue_partial(files, target, plan, fingerprint);
    } else {
      clear_partial(files, target, fingerprint);
      check_space(files, target, plan);
      files.make_folder(target.partial);
      write_command(files, target.partial, fingerprint);
    }
  });
  const auto unseen = attempt([&] { check_seen_by_writers(comm, files, command, target); });  // the same on every rank
  if (unseen) {
    if (!continuing && comm.rank() == target.leader) (void)attempt([&] { files.remove_folder(target.partial); });
    throw Error(*unseen);
  }
  if (continuing) return {};
  const bool reserved = collectively(comm, "target", [&] { return comm.rank() != target.leader || make_files(files, target, plan); });
  if (comm.reduce_all(reserved ? 1 : 0, Reduction::min) != 0) return {};
  return {"The file system of " + printable(target.path, 4096) + " can't reserve space: a full disk would be noticed only while writing"};
}

}  // namespace unshard
