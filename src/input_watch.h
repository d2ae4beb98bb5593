// Whether the files that a run reads stay what they were when it began.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "unshard/comm.h"
#include "unshard/file_system.h"
#include "unshard/source.h"

namespace unshard {

/// Size, time of change and inode of every file of a source, each noted by the rank that reads its headers.
class InputWatch {
 public:
  /// Collective. Before the files are read. References are kept.
  InputWatch(Comm& comm, FileSystem& files, const Source& source);

  /// Collective. The files that the source has got since, too.
  void extend();

  /// Collective; the same on every rank. 64 characters that stand for what was noted, for any number of ranks.
  [[nodiscard]] std::string identity();

  /// Collective. Throws Error(bad_input) naming a file that is not what it was.
  void require_unchanged();

 private:
  struct Noted {
    std::size_t file = 0;  ///< position in Source::files
    FileStatus status;
  };
  Comm& comm_;
  FileSystem& files_;
  const Source& source_;
  std::size_t watched_ = 0;  ///< files of the source
  std::vector<Noted> noted_;  ///< by this rank
};

}  // namespace unshard
