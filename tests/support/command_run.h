// Running a command on ranks of one process against the real disk, keeping what it says.
#pragma once

#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "support/node_disk.h"
#include "unshard/error.h"
#include "unshard/in_process_comm.h"
#include "unshard/log.h"
#include "unshard/merge.h"

namespace unshard::testing {

/// Keeps every line, as the terminal would show it.
class RecordingLog final : public Log {
 public:
  void line(const std::string& text) override { lines += text + "\n"; }
  void warning(const std::string& text) override { lines += "warning: " + text + "\n"; }
  void detail(const std::string&) override {}
  void data(const std::string& text) override { out += text + "\n"; }
  void begin_progress(const std::string&, std::uint64_t) override {}
  void add_progress(std::uint64_t) override {}
  void end_progress() override {}

  std::string lines, out;
};

/// Calls `command` on `ranks` ranks; returns what rank 0 said. Throws what the ranks threw. With `disks`, rank r is on node r, which sees
/// the folder disks[r] as its root.
inline RecordingLog run_command(int ranks, const std::function<void(const Session&)>& command, const std::vector<std::string>& disks = {}) {
  RecordingLog first;
  InProcessOptions options;
  options.ranks_per_node = disks.empty() ? 0 : 1;
  run_ranks(ranks, options, [&](Comm& comm) {
    const auto files = disks.empty() ? posix_file_system() : node_disk(disks[static_cast<std::size_t>(comm.rank())]);
    RecordingLog other;
    command({comm, *files, comm.rank() == 0 ? first : other});
  });
  return first;
}

/// `code: text` of the Error that the command ends with; "" when it succeeds.
inline std::string failure_of(int ranks, const std::function<void(const Session&)>& command) {
  try {
    (void)run_command(ranks, command);
    return "";
  } catch (const Error& error) {
    return std::string(name_of(error.code())) + ": " + error.what();
  }
}

/// All bytes of a file of the real disk.
inline std::string content(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

/// A fresh folder, removed with all in it.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "unshard-XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) throw Error(ErrorCode::io, name + ": can't be made");
    path_ = name;
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  [[nodiscard]] std::string operator/(const std::string& name) const { return (path_ / name).string(); }
  void copy(const std::string& from, const std::string& name) const {
    std::filesystem::create_directories((path_ / name).parent_path());
    std::filesystem::copy(from, path_ / name, std::filesystem::copy_options::recursive);
  }

 private:
  std::filesystem::path path_;
};

}  // namespace unshard::testing
