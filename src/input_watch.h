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

/// Size, time of change and inode of every file of a source (and of its indexes), each noted by a rank that sees it.
class InputWatch {
 public:
  /// Collective. Before the files are read. References are kept: the tree and the source may grow. Throws like extend().
  InputWatch(Comm& comm, FileSystem& files, const Tree& tree, const Source& source);

  /// Collective. The files that the source has got since, too. Throws Error(bad_input) naming a file that is not what it was when the tree
  /// was listed: what was found out about it then may be wrong now.
  void extend();

  /// Collective; the same on every rank. 64 characters that stand for what was noted, for any number of ranks.
  [[nodiscard]] std::string identity();

  /// Collective. Throws Error(bad_input) naming a file that is not what it was.
  void require_unchanged();

 private:
  struct Noted {
    std::string path, label;
    FileStatus status;
  };
  void note(const ShardFile& file);

  Comm& comm_;
  FileSystem& files_;
  const Tree& tree_;
  const Source& source_;
  std::size_t watched_ = 0, watched_indexes_ = 0;  ///< files and indexes of the source
  std::vector<Noted> noted_;                       ///< by this rank
};

}  // namespace unshard
