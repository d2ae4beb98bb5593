#include "send_home.h"

#include <algorithm>

#include "chunk_order.h"
#include "huge_pages.h"
#include "unshard/agree.h"

namespace unshard {
namespace {

/// Records of one tensor in a message.
struct Group {
  TensorId tensor = 0;
  std::uint64_t count = 0;
  std::span<const std::byte> records;
};

std::vector<Bytes> messages(const Comm& comm, std::size_t tensor_count, std::vector<PackedRecords>& records,
                            const std::vector<TensorId>& ids, const std::vector<bool>& left_out) {
  std::vector<WireWriter> to_each(static_cast<std::size_t>(comm.size()));
  for (std::size_t i = 0; i < records.size(); ++i) {
    const std::uint64_t count = records[i].count();
    const Bytes packed = records[i].take();
    if (count == 0 || left_out[ids[i]]) continue;
    WireWriter& out = to_each[static_cast<std::size_t>(home_of(ids[i], tensor_count, comm.size()))];
    out.number(ids[i]);
    out.number(count);
    out.bytes(packed);
  }
  std::vector<Bytes> result;
  for (WireWriter& out : to_each) result.push_back(out.take());
  return result;
}

std::vector<Chunk> unpack(const std::vector<Bytes>& received, const std::vector<TensorRow>& tensors) {
  std::vector<Group> groups;
  std::uint64_t total = 0;
  for (const Bytes& message : received) {
    for (WireReader in(message); !in.at_end();) {
      Group group;
      group.tensor = static_cast<TensorId>(in.number_up_to(tensors.size() - 1));
      group.count = in.number();
      group.records = in.bytes();
      total += std::min<std::uint64_t>(group.count, group.records.size());
      groups.push_back(group);
    }
  }
  std::stable_sort(groups.begin(), groups.end(), [](const Group& a, const Group& b) { return a.tensor < b.tensor; });
  std::vector<Chunk> chunks;
  chunks.reserve(total);
  prefer_huge_pages(chunks.data(), total * sizeof(Chunk));
  for (const Group& group : groups) {
    WireReader in(group.records);
    for (std::uint64_t i = 0; i < group.count; ++i) chunks.push_back(read_chunk(in, group.tensor, tensors[group.tensor].shape.size()));
  }
  return chunks;
}

}  // namespace

std::vector<Chunk> send_home(Comm& comm, const std::vector<TensorRow>& tensors, std::vector<PackedRecords>& records,
                             const std::vector<TensorId>& ids, const std::vector<bool>& left_out) {
  auto to_each = collectively(comm, "catalog", [&] { return messages(comm, tensors.size(), records, ids, left_out); });
  const std::vector<Bytes> received = comm.all_to_all(std::move(to_each));
  return collectively(comm, "catalog", [&] {
    std::vector<Chunk> chunks = unpack(received, tensors);
    if (!std::is_sorted(chunks.begin(), chunks.end(), chunk_before)) std::sort(chunks.begin(), chunks.end(), chunk_before);
    return chunks;
  });
}

}  // namespace unshard
