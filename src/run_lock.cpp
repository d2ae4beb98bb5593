#include "run_lock.h"

#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstdlib>

#include "unshard/error.h"

namespace unshard {
namespace {

constexpr std::uint64_t most_lock_bytes = 4096;

/// `host n017, process 1234, Slurm job 77`: as written into the file and into the message.
std::string owner_text(const std::string& host) {
  std::string text = "host " + host + ", process " + std::to_string(::getpid());
  if (const char* job = std::getenv("SLURM_JOB_ID"); job != nullptr && *job != '\0') text += ", Slurm job " + std::string(job);
  return text;
}

std::string text_of(FileSystem& files, const std::string& path) {
  std::string text;
  if (files.status(path)) text = read_small_file(files, path, most_lock_bytes);
  while (!text.empty() && text.back() == '\n') text.pop_back();
  return text;
}

/// Whether the run that the text names may still live. Of another host nobody knows.
bool may_live(const std::string& text, const std::string& host) {
  const std::string before = "host " + host + ", process ";
  if (text.empty()) return false;
  if (!text.starts_with(before)) return true;
  int process = 0;
  const auto [end, error] = std::from_chars(text.data() + before.size(), text.data() + text.size(), process);
  if (error != std::errc() || process <= 0) return true;
  return ::kill(process, 0) == 0 || errno == EPERM;
}

}  // namespace

std::unique_ptr<FileLock> lock_folder(FileSystem& files, const std::string& folder, const std::string& host) {
  const std::string path = join_path(folder, lock_file_name);
  LockAttempt attempt = files.try_lock(path);
  if (attempt.outcome != LockOutcome::held) {
    const std::string owner = text_of(files, path);
    const std::string named = owner.empty() ? "another process" : printable(owner, 1000);
    if (attempt.outcome == LockOutcome::busy) {
      throw Error(ErrorCode::usage, printable(folder, 4096) + ": another run works on this target: " + named + "; wait for it or end it");
    }
    if (may_live(owner, host)) {
      throw Error(ErrorCode::usage, printable(folder, 4096) + ": another run may be working on this target: " + named +
                                        "; when it has ended, remove " + printable(path, 4096));
    }
  }
  attempt.lock->write(owner_text(host) + "\n");
  return std::move(attempt.lock);
}

}  // namespace unshard
