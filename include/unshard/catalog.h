// Every logical tensor of a checkpoint, and where its pieces lie. Made from headers only.
//
// Two parts. The tensor table is the same on every rank. The chunk records are distributed: a tensor's records are on its home rank
// only (millions of records for a large job).
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "unshard/comm.h"
#include "unshard/source.h"
#include "unshard/tensor.h"

namespace unshard {

using TensorId = std::uint32_t;
using FileId = std::uint32_t;  ///< position in Source::files

/// One stored piece of a tensor: the elements of `box`, at `position` of a file, with any strides. Trivially copyable.
struct Chunk {
  TensorId tensor = 0;
  FileId file = 0;
  Box box;                     ///< in the global tensor; never empty
  std::uint64_t position = 0;  ///< byte position in the file of the element at box.offset
  Shape strides;               ///< in elements, of each dimension of the box; 0 where the data repeats
  // The stored record (zip entry, storage) around the elements: equality of copies is decided from it where possible.
  std::uint64_t record_position = 0;  ///< byte position of the record's data
  std::uint64_t record_bytes = 0;
  std::uint32_t record_crc = 0;  ///< CRC-32 (zip's) of the whole record
  bool has_crc = false;
  bool big_endian = false;  ///< elements are stored most significant byte first
  bool plain = false;       ///< stored whole without a placement: every rank's copy must agree bit by bit
};

/// What one file says of one tensor: a chunk, or (extent 0) only that the tensor exists.
struct Piece {
  std::string name;  ///< as stored
  DType dtype = DType::f32;
  Shape shape;                ///< global
  std::vector<Chunk> chunks;  ///< `tensor` and `file` are not set yet; several for strided placements; none when this rank's part is empty
};

/// Something in a file that is not a tensor and would need code to be rebuilt; it was not.
struct ObjectNote {
  FileId file = 0;
  std::string key;   ///< where in the file: "extra.thing"
  std::string what;  ///< e.g. "posix.system call", "argparse.Namespace"
};

/// Numbers that a checkpoint states about itself, by name: parallel sizes, what rules need to know ("glu_pieces").
using Facts = std::map<std::string, std::uint64_t>;

/// The headers of one file.
struct ShardContents {
  std::vector<Piece> pieces;     ///< in stored order
  std::vector<std::byte> about;  ///< what the format must know of this file to place the pieces of the others (CheckpointFormat::place)
  Facts facts;                   ///< the same in every file that states them
  std::vector<ObjectNote> objects;
  std::vector<Finding> findings;  ///< what the file lacks or has too much of against the rest of the checkpoint; read_catalog hands them on
};

/// One logical tensor.
struct TensorRow {
  std::string name;  ///< as stored, wrappers and all
  DType dtype = DType::f32;
  Shape shape;
  std::uint8_t origin = 0;  ///< 0: the checkpoint; 1: the folder of --fill-missing-from
};

/// Elements that are no numbers.
struct NonFinite {
  std::uint64_t nan = 0;
  std::uint64_t infinite = 0;
};

struct Catalog {
  std::vector<TensorRow> tensors;   ///< in stored order of the first file, then those that only later files have; the same on every rank
  std::vector<Chunk> chunks;        ///< of the tensors at home here; sorted by tensor, then box offset; after prove_coverage without copies
  std::vector<ObjectNote> objects;  ///< the same on every rank
  std::vector<Finding> findings;    ///< the same on every rank
  Facts facts;                      ///< the same on every rank
  std::vector<Finding> replicas;    ///< files that hold what another one holds: right where data is replicated, told when parts are missing
};

/// Local, pure. The rank where the chunk records of tensor `id` live: blocks of neighbouring tensors, balanced in count.
[[nodiscard]] int home_of(TensorId id, std::size_t tensor_count, int ranks);

/// Collective. Reads the headers of every file, each on exactly one rank that sees it, and unites them. A file that can't be read is a
/// finding with its name; a tensor whose dtype or shape differs between files is one too.
/// `files` gives the files and may keep them open for the move.
class FileCache;
[[nodiscard]] Catalog read_catalog(Comm& comm, FileCache& files, const Source& source);

/// Collective. Proves on boxes that every element of every tensor is covered exactly once, copies apart, and drops the copies: identical
/// boxes count as copies, any other overlap is a finding, and so is a hole. Copies are compared by their records' CRC; where that can't
/// decide, by reading both once (`compare_payload`: false leaves that out, true is what merge does). `deep` reads every byte once: copies and checksums are compared, NaNs counted.
struct CoverageOptions {
  bool compare_payload = true;
  bool deep = false;
};
struct Coverage {
  std::vector<NonFinite> non_finite;  ///< by tensor, the same on every rank; empty unless `deep`
};
Coverage prove_coverage(Comm& comm, FileCache& files, const Source& source, Catalog& catalog, const CoverageOptions& options);

/// Collective. Whether the first elements of two tensors (`shape`, from offset 0) hold the same bits after a cast to `dtype`: from aliasing
/// and CRCs where that decides, else by reading both. The same answer on every rank.
[[nodiscard]] bool same_bits(Comm& comm, FileCache& files, const Catalog& catalog, TensorId a, TensorId b, const Shape& shape, DType dtype);

/// Collective. Appends the tensors of `other` (with its files, renumbered) as rows of origin 1.
void append_catalog(Comm& comm, Source& source, Catalog& catalog, const Source& other_source, const Catalog& other);

}  // namespace unshard
