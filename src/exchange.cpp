#include "exchange.h"

#include <algorithm>
#include <cstring>
#include <tuple>
#include <utility>

namespace unshard {
namespace {

constexpr int message_tag = 1;

/// A slice as sent, followed by `rank` extents and `rank` strides.
struct SliceHead {
  std::uint64_t position = 0;
  FileId file = 0;
  DType from = DType::f32, to = DType::f32;
  std::uint8_t flags = 0, rank = 0;
};
constexpr std::uint8_t big_endian_flag = 1, alone_flag = 2;
static_assert(sizeof(SliceHead) == 16);  // no padding is sent

template <class Value>
void append(Bytes& to, const Value* values, std::size_t count) {
  const auto* bytes = reinterpret_cast<const std::byte*>(values);
  to.insert(to.end(), bytes, bytes + count * sizeof(Value));
}

}  // namespace

void SliceListWriter::add_round(const std::vector<Wanted>& slices) {
  const std::uint64_t count = slices.size();
  append(bytes_, &count, 1);
  for (const auto& [slice, alone] : slices) {
    const auto flags = static_cast<std::uint8_t>((slice.big_endian ? big_endian_flag : 0) | (alone ? alone_flag : 0));
    const SliceHead head{slice.position, slice.file, slice.from, slice.to, flags, static_cast<std::uint8_t>(slice.extent.size())};
    append(bytes_, &head, 1);
    append(bytes_, slice.extent.begin(), slice.extent.size());
    append(bytes_, slice.stride.begin(), slice.stride.size());
  }
}

std::vector<Wanted> SliceListReader::next_round() {
  const auto take = [&](void* to, std::size_t bytes) {
    std::memcpy(to, bytes_.data() + at_, bytes);
    at_ += bytes;
  };
  std::vector<Wanted> slices;
  if (at_end()) return slices;
  std::uint64_t count = 0;
  take(&count, sizeof count);
  for (std::uint64_t i = 0; i < count; ++i) {
    SliceHead head;
    take(&head, sizeof head);
    Slice slice{head.file,
                head.from,
                head.to,
                (head.flags & big_endian_flag) != 0,
                head.position,
                Shape::filled(head.rank, 0),
                Shape::filled(head.rank, 0)};
    for (Shape* shape : {&slice.extent, &slice.stride})
      for (std::size_t d = 0; d < head.rank; ++d) take(&(*shape)[d], sizeof(std::uint64_t));
    slices.push_back({slice, (head.flags & alone_flag) != 0});
  }
  return slices;
}

Exchange::Exchange(Comm& comm, std::vector<Bytes> wanted) : comm_(comm) {
  for (Bytes& list : comm.all_to_all(std::move(wanted))) lists_.emplace_back(std::move(list));
}

std::uint64_t Exchange::largest_round() {
  std::uint64_t largest = 0;
  while (std::any_of(lists_.begin(), lists_.end(), [](const SliceListReader& list) { return !list.at_end(); })) {
    std::uint64_t bytes = 0;
    for (SliceListReader& list : lists_)
      for (const Wanted& wanted : list.next_round()) bytes += dense_bytes(wanted.slice);
    largest = std::max(largest, bytes);
  }
  for (SliceListReader& list : lists_) list.rewind();
  return largest;
}

Outgoing Exchange::next_round() {
  Outgoing outgoing;
  const auto add = [&](const Slice& slice) {
    outgoing.items.push_back({slice, outgoing.bytes});
    outgoing.bytes += dense_bytes(slice);
  };
  for (std::size_t rank = 0; rank < lists_.size(); ++rank) {
    const auto end_message = [&](std::uint64_t begin) {
      if (outgoing.bytes > begin) outgoing.messages.push_back({static_cast<int>(rank), begin, outgoing.bytes - begin});
    };
    const std::vector<Wanted> slices = lists_[rank].next_round();
    const std::uint64_t joined = outgoing.bytes;
    for (const Wanted& wanted : slices)
      if (!wanted.alone) add(wanted.slice);
    end_message(joined);
    for (const Wanted& wanted : slices) {
      if (!wanted.alone) continue;
      const std::uint64_t begin = outgoing.bytes;
      add(wanted.slice);
      end_message(begin);
    }
  }
  std::sort(outgoing.items.begin(), outgoing.items.end(), [](const Outgoing::Item& a, const Outgoing::Item& b) {
    return std::tie(a.slice.file, a.slice.position) < std::tie(b.slice.file, b.slice.position);
  });
  return outgoing;
}

std::vector<std::unique_ptr<Request>> Exchange::post(const Outgoing& outgoing, std::span<const std::byte> sent,
                                                     std::span<const Incoming> incoming) {
  std::vector<std::unique_ptr<Request>> requests;
  for (const Incoming& message : incoming) requests.push_back(comm_.receive(message.rank, message_tag, message.to));
  for (const Outgoing::Message& message : outgoing.messages)
    requests.push_back(comm_.send(message.rank, message_tag, sent.subspan(message.at, message.bytes)));
  return requests;
}

}  // namespace unshard
