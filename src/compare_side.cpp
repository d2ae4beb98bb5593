#include "compare_side.h"

#include <algorithm>

#include "file_owners.h"
#include "unshard/agree.h"
#include "value_bytes.h"

namespace unshard {
namespace {

/// One file that holds all targets, one after the other; run r is what rank r reads of it.
Plan plan_for(const Targets& targets, const std::vector<ByteRange>& ranges) {
  Plan plan;
  plan.ranks = static_cast<int>(ranges.size());
  OutputFile file;
  for (std::uint32_t target = 0; target < targets.targets.size(); ++target) {
    const Target& of = targets.targets[target];
    const std::uint64_t bytes = volume(of.shape) * info(of.dtype).size_bytes;
    plan.layout.placed.push_back({target, 0, file.size_bytes, bytes});
    file.size_bytes += bytes;
  }
  plan.layout.files.push_back(file);
  for (const ByteRange& range : ranges) {
    plan.runs.emplace_back();
    if (range.begin < range.end) plan.runs.back().push_back({0, 0, range.begin, range.end});
  }
  return plan;
}

bool sees(const Comm& comm, const ShardFile& file) {
  return std::ranges::binary_search(file.nodes, static_cast<std::uint32_t>(comm.node_of(comm.rank())));
}

}  // namespace

ComparedSide::ComparedSide(Comm& comm, const Side& side, const Targets& targets, const std::vector<ByteRange>& ranges)
    : side_(side),
      plan_(plan_for(targets, ranges)),
      chunks_(send_chunks(comm, side.catalog, targets, plan_)),
      assembler_(side.catalog.tensors, targets, plan_, chunks_) {
  const auto nodes = static_cast<std::size_t>(comm.node_count());
  everywhere_ = std::ranges::all_of(side.source.files, [&](const ShardFile& file) { return file.nodes.size() == nodes; });
}

void ComparedSide::read(ByteRange range, std::vector<std::byte>& bytes, Buffers& work) const {
  bytes.resize(range.end - range.begin);
  (void)assemble(side_.files, assembler_.copies(0, range.begin, range.end), bytes, work);
}

void ComparedSide::read_together(Comm& comm, ByteRange range, std::vector<std::byte>& bytes, Buffers& work) const {
  std::vector<std::vector<Copy>> far(static_cast<std::size_t>(comm.size()));  // by the rank that reads for us
  std::vector<Bytes> requests(far.size());
  collectively(comm, "test", [&] {
    bytes.resize(range.end - range.begin);
    const std::vector<int> owners = file_owners(comm, side_.source);
    std::vector<Copy> near;
    if (range.begin < range.end) near = assembler_.copies(0, range.begin, range.end);
    const auto first_far =
        std::stable_partition(near.begin(), near.end(), [&](const Copy& copy) { return sees(comm, side_.source.files[copy.slice.file]); });
    for (auto copy = first_far; copy != near.end(); ++copy) far[static_cast<std::size_t>(owners[copy->slice.file])].push_back(*copy);
    near.erase(first_far, near.end());
    (void)assemble(side_.files, near, bytes, work);
    for (std::size_t rank = 0; rank < far.size(); ++rank) {
      std::vector<Slice> slices;
      for (const Copy& copy : far[rank]) slices.push_back(copy.slice);
      requests[rank] = bytes_of(slices);
    }
  });
  const std::vector<Bytes> wanted = comm.all_to_all(std::move(requests));
  std::vector<Bytes> answers(wanted.size());
  collectively(comm, "test", [&] {
    for (std::size_t rank = 0; rank < wanted.size(); ++rank) {
      std::vector<Slice> slices;
      append_values(slices, wanted[rank]);
      std::size_t total = 0;
      for (const Slice& slice : slices) total += dense_bytes(slice);
      answers[rank].resize(total);
      std::span<std::byte> rest = answers[rank];
      for (const Slice& slice : slices) {
        fetch(*side_.files.get(slice.file), slice, rest.first(dense_bytes(slice)), work.scratch);
        rest = rest.subspan(dense_bytes(slice));
      }
    }
  });
  const std::vector<Bytes> received = comm.all_to_all(std::move(answers));
  for (std::size_t rank = 0; rank < far.size(); ++rank) {
    std::span<const std::byte> dense = received[rank];
    for (const Copy& copy : far[rank]) {
      place(copy, dense.first(dense_bytes(copy.slice)), bytes);
      dense = dense.subspan(dense_bytes(copy.slice));
    }
  }
}

}  // namespace unshard
