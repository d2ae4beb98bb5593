#include "file_copies.h"

#include <algorithm>
#include <map>

#include "chunk_wire.h"
#include "file_owners.h"
#include "sha256.h"
#include "stored_elements.h"
#include "unshard/agree.h"
#include "unshard/checkpoint_format.h"
#include "unshard/file_cache.h"

namespace unshard {
namespace {

/// Place 0 is the file itself, place i > 0 copy i - 1.
using PlaceKey = std::pair<FileId, std::uint64_t>;
/// A hash of the file's contents, or why they can't be read.
struct Fingerprint {
  std::string hash, failure;
};

/// Of the headers; and of all data where a file has no checksums of its own (safetensors): two steps of one training run differ in nothing
/// else.
std::string hash_of(const ShardContents& contents, File& file, const WorkLimits& limits, bool deep) {
  WireWriter out;
  bool has_checksums = !deep;
  for (const Piece& piece : contents.pieces) {
    out.text(piece.name);
    out.number(static_cast<std::uint64_t>(piece.dtype));
    out.shape(piece.shape);
    out.number(piece.chunks.size());
    for (const Chunk& chunk : piece.chunks) {
      write_chunk(out, chunk);
      has_checksums = has_checksums && chunk.has_crc;
    }
  }
  if (!has_checksums) {
    Sha256 data;
    read_range(file, 0, file.size(), limits, [&](std::span<std::byte> bytes) { data.add(bytes); });
    out.raw(data.digest());
  }
  const Digest digest = sha256(out.written());
  return {reinterpret_cast<const char*>(digest.data()), digest.size()};
}

Fingerprint read_fingerprint(FileCache& files, const Source& source, FileId file, const std::string& path, bool deep) {
  Fingerprint result;
  const auto failure = attempt([&] {
    const auto open_file = files.system().open_for_reading(path);
    result.hash = hash_of(format_named(source.format).read_headers(source, file, *open_file), *open_file, files.limits(), deep);
  });
  if (failure && is_stop(failure->code())) throw *failure;
  if (failure) result.failure = failure->what();
  return result;
}

Bytes own_fingerprints(const Comm& comm, FileCache& files, const Source& source, bool deep) {
  WireWriter out;
  const auto add = [&](FileId file, std::uint64_t place, const std::string& path, const std::vector<std::uint32_t>& nodes) {
    if (lowest_rank_on(comm, nodes) != comm.rank()) return;
    const Fingerprint fingerprint = read_fingerprint(files, source, file, path, deep);
    out.number(file);
    out.number(place);
    out.text(fingerprint.hash);
    out.text(fingerprint.failure);
  };
  for (std::size_t i = 0; i < source.files.size(); ++i) {
    const ShardFile& shard = source.files[i];
    if (shard.copies.empty()) continue;
    const auto file = static_cast<FileId>(i);
    add(file, 0, shard.path, shard.nodes);
    for (std::size_t place = 0; place < shard.copies.size(); ++place)
      add(file, place + 1, shard.copies[place].path, shard.copies[place].nodes);
  }
  return out.take();
}

std::string place_name(const Comm& comm, const std::string& path, const std::vector<std::uint32_t>& nodes) {
  return printable(path, 4096) + (comm.node_count() > 1 ? " on " + printable(comm.host_of(lowest_rank_on(comm, nodes))) : "");
}

}  // namespace

std::vector<Finding> compare_file_copies(Comm& comm, FileCache& files, const Source& source, bool deep) {
  if (std::all_of(source.files.begin(), source.files.end(), [](const ShardFile& file) { return file.copies.empty(); })) return {};
  const Bytes mine = collectively(comm, "catalog", [&] { return own_fingerprints(comm, files, source, deep); });
  const std::vector<Bytes> all = comm.gather_all(mine);
  return collectively(comm, "catalog", [&] {
    std::map<PlaceKey, Fingerprint> fingerprints;
    for (const Bytes& bytes : all) {
      for (WireReader in(bytes); !in.at_end();) {
        const auto file = static_cast<FileId>(in.number_up_to(source.files.size() - 1));
        const std::uint64_t place = in.number();
        Fingerprint& fingerprint = fingerprints[{file, place}];
        fingerprint.hash = in.text();
        fingerprint.failure = in.text();
      }
    }
    std::vector<Finding> findings;
    for (const auto& [key, fingerprint] : fingerprints) {
      const Fingerprint& first = fingerprints.at({key.first, 0});
      if (key.second == 0 || !first.failure.empty() || fingerprint.hash == first.hash) continue;
      const ShardFile& shard = source.files[key.first];
      const FileCopy& copy = shard.copies.at(key.second - 1);
      const std::string both = place_name(comm, shard.path, shard.nodes) + " and " + place_name(comm, copy.path, copy.nodes);
      findings.push_back({Severity::error, shard.label,
                          fingerprint.failure.empty()
                              ? "there are two different files of this name, " + both + "; remove the one that does not belong here"
                              : "there are two files of this name, " + both + ", and one can't be read: " + fingerprint.failure,
                          ErrorCode::bad_input});
    }
    return findings;
  });
}

}  // namespace unshard
