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
  std::uint8_t big_endian = 0, rank = 0;
};

template <class Value>
void append(Bytes& to, const Value* values, std::size_t count) {
  const auto* bytes = reinterpret_cast<const std::byte*>(values);
  to.insert(to.end(), bytes, bytes + count * sizeof(Value));
}

}  // namespace

void SliceListWriter::add_round(const std::vector<Slice>& slices) {
  const std::uint64_t count = slices.size();
  append(bytes_, &count, 1);
  for (const Slice& slice : slices) {
    const SliceHead head{slice.position,
                         slice.file,
                         slice.from,
                         slice.to,
                         slice.big_endian ? std::uint8_t{1} : std::uint8_t{0},
                         static_cast<std::uint8_t>(slice.extent.size())};
    append(bytes_, &head, 1);
    append(bytes_, slice.extent.begin(), slice.extent.size());
    append(bytes_, slice.stride.begin(), slice.stride.size());
  }
}

std::vector<Slice> SliceListReader::next_round() {
  const auto take = [&](void* to, std::size_t bytes) {
    std::memcpy(to, bytes_.data() + at_, bytes);
    at_ += bytes;
  };
  std::vector<Slice> slices;
  if (at_end()) return slices;
  std::uint64_t count = 0;
  take(&count, sizeof count);
  for (std::uint64_t i = 0; i < count; ++i) {
    SliceHead head;
    take(&head, sizeof head);
    Slice slice{
        head.file, head.from, head.to, head.big_endian != 0, head.position, Shape::filled(head.rank, 0), Shape::filled(head.rank, 0)};
    for (Shape* shape : {&slice.extent, &slice.stride})
      for (std::size_t d = 0; d < head.rank; ++d) take(&(*shape)[d], sizeof(std::uint64_t));
    slices.push_back(slice);
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
      for (const Slice& slice : list.next_round()) bytes += dense_bytes(slice);
    largest = std::max(largest, bytes);
  }
  for (SliceListReader& list : lists_) list.rewind();
  return largest;
}

Outgoing Exchange::next_round() {
  Outgoing outgoing;
  for (SliceListReader& list : lists_) {
    const std::uint64_t begin = outgoing.bytes;
    for (const Slice& slice : list.next_round()) {
      outgoing.items.push_back({slice, outgoing.bytes});
      outgoing.bytes += dense_bytes(slice);
    }
    outgoing.message.push_back(outgoing.bytes - begin);
  }
  std::sort(outgoing.items.begin(), outgoing.items.end(), [](const Outgoing::Item& a, const Outgoing::Item& b) {
    return std::tie(a.slice.file, a.slice.position) < std::tie(b.slice.file, b.slice.position);
  });
  return outgoing;
}

std::vector<std::unique_ptr<Request>> Exchange::post(const Outgoing& outgoing, std::span<const std::byte> sent,
                                                     const std::vector<std::uint64_t>& incoming, std::span<std::byte> received) {
  std::vector<std::unique_ptr<Request>> requests;
  for (std::size_t rank = 0; rank < incoming.size(); ++rank) {
    if (incoming[rank] > 0) requests.push_back(comm_.receive(static_cast<int>(rank), message_tag, received.first(incoming[rank])));
    received = received.subspan(incoming[rank]);
  }
  for (std::size_t rank = 0; rank < outgoing.message.size(); ++rank) {
    if (outgoing.message[rank] > 0) requests.push_back(comm_.send(static_cast<int>(rank), message_tag, sent.first(outgoing.message[rank])));
    sent = sent.subspan(outgoing.message[rank]);
  }
  return requests;
}

}  // namespace unshard
