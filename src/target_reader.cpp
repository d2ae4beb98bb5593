#include "target_reader.h"

#include <algorithm>

namespace unshard {
namespace {

/// The targets one behind the other in one file, each a run of its rank.
Plan plan_of(const Targets& targets, const std::vector<int>& owners, int ranks) {
  Plan plan;
  plan.ranks = ranks;
  plan.runs.resize(static_cast<std::size_t>(ranks));
  OutputFile file;
  for (std::uint32_t i = 0; i < targets.targets.size(); ++i) {
    const std::uint64_t bytes = volume(targets.targets[i].shape) * info(targets.targets[i].dtype).size_bytes;
    plan.layout.placed.push_back({i, 0, file.size_bytes, bytes});
    plan.runs[static_cast<std::size_t>(owners[i])].push_back({0, 0, file.size_bytes, file.size_bytes + bytes});
    file.size_bytes += bytes;
  }
  plan.layout.files.push_back(file);
  return plan;
}

}  // namespace

TargetReader::TargetReader(const Session& session, FileCache& files, const Catalog& catalog, Targets targets,
                           const std::vector<int>& owners)
    : files_(files),
      targets_(std::move(targets)),
      plan_(plan_of(targets_, owners, session.comm.size())),
      chunks_(send_chunks(session.comm, catalog, targets_, plan_)),
      assembler_(catalog.tensors, targets_, plan_, chunks_) {
  const std::uint64_t share = files.limits().buffer_bytes / 8;
  buffers_.scratch.resize(std::min<std::uint64_t>(share, std::uint64_t{512} << 10));
  sizes_ = {std::min<std::uint64_t>(share, std::uint64_t{1} << 20), share, buffers_.scratch.size(), share};
}

void TargetReader::read(std::size_t target, std::uint64_t first, std::span<std::byte> to) {
  const PlacedTarget& placed = plan_.layout.placed[target];
  const std::uint64_t end = placed.position + first + to.size();
  for (std::uint64_t at = placed.position + first; at < end;) {
    stop_if_signalled(files_.limits());
    const OutputPiece piece = next_piece(assembler_, 0, at, end, sizes_);
    (void)make_piece(files_, piece, to.subspan(at - placed.position - first, piece.end - at), buffers_);
    at = piece.end;
  }
}

}  // namespace unshard
