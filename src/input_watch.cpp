#include "input_watch.h"

#include <algorithm>

#include "file_owners.h"
#include "hash.h"
#include "sha256.h"
#include "unshard/agree.h"
#include "unshard/error.h"

namespace unshard {
namespace {

[[noreturn]] void refuse(const std::string& label, const std::string& what) {
  throw Error(ErrorCode::bad_input, printable(label, 4096) + ": changed while it was being read (" + what +
                                        "); is the training job still writing? When the files stay as they are, run again with --restart");
}

void compare(const std::string& file, const FileStatus& before, const std::optional<FileStatus>& now) {
  if (!now) refuse(file, "it is not there any more");
  if (now->size_bytes != before.size_bytes)
    refuse(file, std::to_string(before.size_bytes) + " bytes before, now " + std::to_string(now->size_bytes));
  if (now->inode != before.inode) refuse(file, "another file has taken its place");
  if (now->mtime_ns != before.mtime_ns) refuse(file, "its time of change is another one");
}

}  // namespace

InputWatch::InputWatch(Comm& comm, FileSystem& files, const Tree& tree, const Source& source)
    : comm_(comm), files_(files), tree_(tree), source_(source) {
  extend();
}

void InputWatch::note(const ShardFile& file) {
  const auto status = files_.status(file.path);
  if (!status) throw Error(ErrorCode::bad_input, printable(file.label, 4096) + ": is not there any more");
  const TreeEntry* listed = tree_.find(file.path);
  const auto node = static_cast<std::uint32_t>(comm_.node_of(comm_.rank()));
  if (listed != nullptr && std::ranges::binary_search(listed->nodes, node)) compare(file.label, listed->status, status);
  noted_.push_back({file.path, file.label, *status});
}

void InputWatch::extend() {
  collectively(comm_, "input", [&] {
    const std::vector<int> owners = file_owners(comm_, source_);
    for (; watched_ < source_.files.size(); ++watched_)
      if (owners[watched_] == comm_.rank()) note(source_.files[watched_]);
    for (; watched_indexes_ < source_.index_files.size(); ++watched_indexes_) {
      const ShardFile& index = source_.index_files[watched_indexes_];
      if (lowest_rank_on(comm_, index.nodes) == comm_.rank()) note(index);
    }
  });
}

std::string InputWatch::identity() {
  std::uint64_t sum = 0;  // it depends on the number of ranks which of them has noted a file
  for (const Noted& noted : noted_) {
    Hash hash;
    hash.add(noted.label);
    hash.add_all(noted.status.size_bytes, noted.status.mtime_ns, noted.status.inode);
    sum += hash.value();
  }
  return sha256_hex(std::to_string(comm_.reduce_all(sum, Reduction::sum)));
}

void InputWatch::require_unchanged() {
  collectively(comm_, "input", [&] {
    for (const Noted& noted : noted_) compare(noted.label, noted.status, files_.status(noted.path));
  });
}

}  // namespace unshard
