// What one rank has written in one run, so that a later run of the same command can go on from it.
//
// A journal is an append-only file of the partial folder, `.unshard-journal-<run>-<rank>`. It is read like any other file that somebody
// else may have changed: a record counts only when its checksum fits and it lies inside a file of the plan, and it proves nothing: the
// next run reads the range again and compares its checksum.
//
//   header, 152 bytes:  8 "UNSHJNL2" · u32 stage · u32 0 · 64 command · 64 inputs · u32 CRC-32C of the 144 bytes before · u32 0
//   record, 32 bytes:   u32 file · u32 CRC-32C of the range · u64 begin · u64 end · u32 0 · u32 CRC-32C of the 28 bytes before
//
// Numbers are little-endian. The first record that is not whole ends the journal: a killed run leaves a torn tail.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "unshard/file_system.h"
#include "unshard/move.h"

namespace unshard {

/// Whose journal it is. Records count only for the same command, stage and inputs.
struct JournalKey {
  std::string command;  ///< command_identity()
  std::string inputs;   ///< InputWatch::identity()
  int stage = 0;
  friend bool operator==(const JournalKey&, const JournalKey&) = default;
};

inline constexpr std::string_view journal_prefix = ".unshard-journal-";

struct JournalName {
  std::uint32_t run = 0, rank = 0;
};
[[nodiscard]] std::string journal_name(const JournalName& name);
/// None for the name of another file.
[[nodiscard]] std::optional<JournalName> parse_journal_name(std::string_view name);

/// The writing side. Thread-safe.
class Journal {
 public:
  /// Makes the file `path` with its header.
  Journal(FileSystem& files, const std::string& path, const JournalKey& key);

  /// Notes a range that has been written. Records are appended in batches of about 1 MiB of output: what a killed run loses (in rounds, all
  /// since the ranks compared how they are).
  void add(const Extent& extent);
  /// Appends what has not been appended yet.
  void flush();

 private:
  void append();

  std::mutex mutex_;
  std::unique_ptr<File> file_;
  std::uint64_t end_ = 0;
  std::vector<Extent> waiting_;
  std::uint64_t waiting_bytes_ = 0;
};

/// The reading side. Local. None when the file is no journal.
struct JournalContent {
  JournalKey key;
  std::vector<Extent> extents;
};
/// Extents that leave their file (`sizes[file]`), or are longer than any run writes, are left out. A journal that claims to have written
/// everything several times over has no extents.
[[nodiscard]] std::optional<JournalContent> read_journal(File& file, const std::vector<std::uint64_t>& sizes);

}  // namespace unshard
