// What reading headers brought up, united: findings of files and tensors, objects that are not tensors. The same on every rank and for any
// number of ranks.
#pragma once

#include <vector>

#include "unshard/catalog.h"
#include "wire.h"

namespace unshard {

/// A finding with the file in which it was made.
struct FileFinding {
  FileId file = 0;
  bool whole_file = false;  ///< the file can't be read at all
  Finding finding;
};

/// Collective. Files that can't be read come first, by number, cut to a sensible length; the same finding in several files becomes one that
/// says in how many.
[[nodiscard]] std::vector<Finding> unite_findings(Comm& comm, const Source& source, const std::vector<FileFinding>& mine);

/// Collective. Each kind of object once, from the lowest file that has it.
[[nodiscard]] std::vector<ObjectNote> unite_objects(Comm& comm, const std::vector<ObjectNote>& mine);

/// Local. A finding as bytes and back.
void write_finding(WireWriter& out, const Finding& finding);
[[nodiscard]] Finding read_finding(WireReader& in);

/// Local. What a failure with `file` says, without the name that the text starts with.
[[nodiscard]] Finding finding_of(const Error& error, const ShardFile& file);

}  // namespace unshard
