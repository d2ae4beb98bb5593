// Moves the bytes of a plan: read, exchange, assemble, cast, write, in rounds; and reads them back.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "unshard/catalog.h"
#include "unshard/comm.h"
#include "unshard/file_cache.h"
#include "unshard/plan.h"
#include "unshard/work_limits.h"

namespace unshard {

/// A range of an output file that this rank wrote, with the CRC-32C of the bytes it wanted to write. The unit of verification and of
/// resuming.
struct Extent {
  std::uint32_t file = 0;
  std::uint64_t begin = 0, end = 0;
  std::uint32_t crc32c = 0;
};

/// The chunk records that this rank needs for its runs, by source tensor: records of tensor t are chunks[first[t] .. first[t + 1]), sorted
/// by box offset.
struct ChunkTable {
  std::vector<std::uint64_t> first;
  std::vector<Chunk> chunks;
  [[nodiscard]] std::span<const Chunk> of(TensorId tensor) const {
    return {chunks.data() + first[tensor], static_cast<std::size_t>(first[tensor + 1] - first[tensor])};
  }
};

/// Collective. One all-to-all: home ranks send the records of each tensor to the ranks whose runs use it.
[[nodiscard]] ChunkTable send_chunks(Comm& comm, const Catalog& catalog, const Targets& targets, const Plan& plan);

struct MoveOptions {
  IoMode io = IoMode::automatic;
  int threads = 4;                                        ///< I/O threads of this rank
  std::uint64_t buffer_bytes = std::uint64_t{256} << 20;  ///< bound of all buffers of this rank together
  std::size_t open_files = 0;  ///< shards that this rank may have open at the same time: whether ranks can share them
  bool home_readers = false;   ///< each shard is read by one rank that sees it and sent to the owners; else owners read
  bool read_back = false;      ///< a rank reads back and compares what it has written, as it goes; only where share_page_cache()
  std::uint64_t trail_bytes = std::uint64_t{64} << 20;  ///< of output that a rank leaves in the page cache behind the place where it
                                                        ///< writes; up to 48 MiB more of what ranks write together
  std::vector<std::pair<std::string, std::string>> mpi_hints;
  std::function<void(std::uint64_t bytes)>
      progress;  ///< called now and then on every rank, with the bytes that all ranks have written since the last call
  std::function<void(const Extent&)>
      written;  ///< called by any thread after a range has been written, and is right as far as ranks know; what it throws ends the move
  std::function<int()> signal;  ///< asked several times a second, or every few rounds; the number of a signal (0: none) ends the move with
                                ///< Error(128 + signal) on all ranks
};

/// Per rank figures of a move.
struct MoveReport {
  std::vector<Extent> extents;  ///< what this rank wrote, sorted by file and position
  std::uint64_t read_bytes = 0, exchanged_bytes = 0, written_bytes = 0;
  std::uint64_t messages = 0;                                ///< that this rank received: all that one rank sent it in one round is one
  std::uint64_t read_ns = 0, exchange_ns = 0, write_ns = 0;  ///< of the I/O threads together; they overlap
  std::uint64_t busy_ns = 0;  ///< during which the I/O threads had work (but settling, where ranks write together)
};

/// Local, pure. PlanOptions::step_bytes for ranks on so many nodes, each with so many bytes of buffers.
[[nodiscard]] std::uint64_t step_bytes_for(std::uint64_t buffer_bytes, IoMode io, int nodes);

/// What the choice of readers follows from; the same on every rank.
struct ReadFacts {
  std::uint64_t files = 0;            ///< of the source
  std::uint64_t opens_by_owners = 0;  ///< of all ranks together, those for the headers included, if every rank reads what it needs
  bool owners_see_all = true;         ///< every rank runs on a node that sees the files that it needs
  bool can_share = false;             ///< all ranks run on one node, and each may have every file open at the same time
};

/// Who reads the shards.
enum class Readers : std::uint8_t {
  owners,   ///< of the output: each opens the files that it needs
  sharing,  ///< the same, but a file is opened by one rank, which passes it on to the others (pass_files.h)
  homes,    ///< of each file one rank, which sends to the owners (MoveOptions::home_readers)
};

/// Collective. `chunks`: what send_chunks returned. `open_files`: that this rank may have open at the same time.
[[nodiscard]] ReadFacts read_facts(Comm& comm, const Source& source, const ChunkTable& chunks, std::size_t open_files);

/// Local, pure. Owners, unless they do not see all that they need, or would open files more than twice on average; if files can't be shared
/// then, home ranks: on a shared file system sending is only worth it to spare its metadata servers.
[[nodiscard]] Readers readers_for(const ReadFacts& facts);

/// Local, pure. Whether all ranks that see the target (those not in `blind`, sorted) run on one node. What any of them reads back comes
/// from the same page cache then, so that each may do it for itself (MoveOptions::read_back); else verify() lets another node read.
[[nodiscard]] bool share_page_cache(const Comm& comm, const std::vector<int>& blind);

/// Local, pure. The least --buffer-size that this plan can be moved with.
[[nodiscard]] std::uint64_t least_buffer_bytes(const Plan& plan, const MoveOptions& options);

/// Local, pure. The least --buffer-size with which the targets that are computed can be; 0 when none is. What home ranks send for a piece
/// lies beside it until all of it is there.
[[nodiscard]] std::uint64_t least_computing_bytes(const Targets& targets, bool home_readers = false);

/// Collective. Writes every run into the files of `folder`, which exist under their partial_name and have their final size (see publish.h).
/// Throws the same Error on every rank. A rank that fails or gets a signal goes on taking part, with empty writes, until the ranks compare
/// how they are: several times a second, or every few rounds. Then all of them stop.
[[nodiscard]] MoveReport move(Comm& comm, FileCache& sources, const Source& source, const Catalog& catalog, const Targets& targets,
                              const Plan& plan, const ChunkTable& chunks, FileSystem& target_files, const std::string& folder,
                              const MoveOptions& options);

/// Collective. Before publishing (files have their partial_name). Each rank reads back, with plain reads, the extents that another rank
/// wrote (on another node, where there is one), and compares CRCs. Throws Error(verification) naming file and range. `blind`: ranks that
/// don't see the folder (sorted); they have no extents and read nothing.
void verify(Comm& comm, FileSystem& target_files, const std::string& folder, const Plan& plan, const std::vector<Extent>& extents,
            const WorkLimits& limits, const std::vector<int>& blind = {});

}  // namespace unshard
