// Index files: what must be read before the headers of the other files can be (DCP's .metadata). Each is read and parsed by one rank and
// travels packed, because a large job's index takes many times its size while it is parsed.
#include <map>

#include "catalog_notes.h"
#include "check_files.h"
#include "file_owners.h"
#include "sha256.h"
#include "unshard/agree.h"
#include "unshard/checkpoint_format.h"

namespace unshard {
namespace {

/// Place 0 is the file itself, place i > 0 copy i - 1.
using PlaceKey = std::pair<FileId, std::uint64_t>;

struct IndexRead {
  Bytes packed;  ///< of the file itself
  std::string hash;
  std::optional<Finding> failure;
};

IndexRead read_place(FileSystem& files, const Source& source, FileId file, const std::string& path) {
  IndexRead read;
  const auto failure = attempt([&] {
    const auto open_file = files.open_for_reading(path);
    read.packed = format_named(source.format).read_index(source, file, *open_file);
    const Digest digest = sha256(read.packed);
    read.hash.assign(reinterpret_cast<const char*>(digest.data()), digest.size());
  });
  if (failure) read.failure = finding_of(*failure, source.index_files[file]);
  return read;
}

/// What this rank is to read, for all ranks.
Bytes read_own(const Comm& comm, FileSystem& files, const Source& source) {
  Source indexes;
  indexes.files = source.index_files;
  const std::vector<int> owners = file_owners(comm, indexes);
  WireWriter out;
  const auto add = [&](std::size_t file, std::uint64_t place, const std::string& path, int reader) {
    if (reader != comm.rank()) return;
    const IndexRead read = read_place(files, source, static_cast<FileId>(file), path);
    out.number(file);
    out.number(place);
    out.number(read.failure ? 1 : 0);
    if (read.failure) return write_finding(out, *read.failure);
    out.text(read.hash);
    out.bytes(place == 0 ? read.packed : Bytes{});
  };
  for (std::size_t file = 0; file < source.index_files.size(); ++file) {
    const ShardFile& index = source.index_files[file];
    add(file, 0, index.path, owners[file]);
    for (std::size_t i = 0; i < index.copies.size(); ++i)
      add(file, i + 1, index.copies[i].path, lowest_rank_on(comm, index.copies[i].nodes));
  }
  return out.take();
}

std::map<PlaceKey, IndexRead> decode(const std::vector<Bytes>& all, const Source& source) {
  std::map<PlaceKey, IndexRead> reads;
  for (const Bytes& bytes : all) {
    for (WireReader in(bytes); !in.at_end();) {
      const auto file = static_cast<FileId>(in.number_up_to(source.index_files.size() - 1));
      const std::uint64_t place = in.number();
      IndexRead& read = reads[{file, place}];
      if (in.number_up_to(1) == 1) {
        read.failure = read_finding(in);
        continue;
      }
      read.hash = in.text();
      const auto packed = in.bytes();
      read.packed.assign(packed.begin(), packed.end());
    }
  }
  return reads;
}

void compare_copies(const std::map<PlaceKey, IndexRead>& reads, Source& source) {
  for (const auto& [key, read] : reads) {
    const IndexRead& first = reads.at({key.first, 0});
    if (key.second == 0 || first.failure || (!read.failure && read.hash == first.hash)) continue;
    const ShardFile& index = source.index_files[key.first];
    const std::string other = printable(index.copies.at(key.second - 1).path, 4096);
    source.findings.push_back({Severity::error, index.label,
                               read.failure
                                   ? "there is another file of this name, " + other + ", and it can't be read: " + read.failure->text
                                   : "there are two different files of this name, " + printable(index.path, 4096) + " and " + other +
                                         "; remove the one that does not belong here",
                               ErrorCode::bad_input});
  }
}

}  // namespace

void check_files(const Tree& tree, std::vector<ShardFile>& files) {
  for (ShardFile& file : files) {
    const TreeEntry* entry = tree.find(file.path);
    if (entry == nullptr) continue;
    if (!entry->problem.empty()) throw Error(ErrorCode::bad_input, printable(file.label, 4096) + ": " + entry->problem);
    for (const auto& nodes : entry->other_copies) file.copies.push_back({file.path, nodes});
  }
}

Bytes CheckpointFormat::read_index(const Source& source, FileId file, File&) const {
  throw Error(ErrorCode::internal, source.index_files.at(file).label + ": the format " + std::string(name()) + " has no index files");
}

void CheckpointFormat::apply_index(const Tree&, std::span<const Bytes>, Source&) const {}

void read_index_files(Comm& comm, FileSystem& files, const Tree& tree, Source& source) {
  if (source.index_files.empty()) return;
  const Bytes mine = collectively(comm, "discover", [&] { return read_own(comm, files, source); });
  const std::vector<Bytes> all = comm.gather_all(mine);
  collectively(comm, "discover", [&] {
    std::map<PlaceKey, IndexRead> reads = decode(all, source);
    compare_copies(reads, source);
    std::vector<Bytes> packed;
    for (std::size_t file = 0; file < source.index_files.size(); ++file) {
      IndexRead& read = reads.at({static_cast<FileId>(file), 0});
      if (read.failure) source.findings.push_back(*read.failure);
      packed.push_back(std::move(read.packed));
    }
    format_named(source.format).apply_index(tree, packed, source);
    check_files(tree, source.files);
  });
}

}  // namespace unshard
