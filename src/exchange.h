// What readers send to owners, round by round.
//
// At the start of a wave each owner tells each reader which slices it needs in which round (one all-to-all of lists). From then on both
// sides know every message from a reader to an owner in a round: first one with the dense bytes of the owner's slices, in the order of its
// list, then one for each slice that goes alone, because the owner receives it where it belongs. No request is ever sent.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "assemble.h"
#include "unshard/comm.h"

namespace unshard {

struct Wanted {
  Slice slice;
  bool alone = false;  ///< a message of its own
};

/// The slices that one owner wants of one reader, for all rounds of a wave, as sent: for each round their number, then the slices.
class SliceListWriter {
 public:
  void add_round(const std::vector<Wanted>& slices);
  [[nodiscard]] Bytes take() { return std::move(bytes_); }

 private:
  Bytes bytes_;
};

class SliceListReader {
 public:
  explicit SliceListReader(Bytes bytes) : bytes_(std::move(bytes)) {}
  /// The next round's slices; none after the last round.
  [[nodiscard]] std::vector<Wanted> next_round();
  void rewind() { at_ = 0; }
  [[nodiscard]] bool at_end() const { return at_ == bytes_.size(); }

 private:
  Bytes bytes_;
  std::size_t at_ = 0;
};

/// What this rank sends in one round.
struct Outgoing {
  struct Item {
    Slice slice;
    std::uint64_t at = 0;  ///< where its dense bytes go in the send buffer
  };
  struct Message {
    int rank = 0;
    std::uint64_t at = 0, bytes = 0;  ///< in the send buffer
  };
  std::vector<Item> items;        ///< in the order in which they lie in the files
  std::vector<Message> messages;  ///< to one rank in the order in which it receives them
  std::uint64_t bytes = 0;        ///< of the send buffer
};

/// One message that this rank receives, and where.
struct Incoming {
  int rank = 0;
  std::span<std::byte> to;
};

/// The lists that owners sent to this rank, and the messages of a round.
class Exchange {
 public:
  /// Collective. `wanted[r]`: what this rank wants of rank r.
  Exchange(Comm& comm, std::vector<Bytes> wanted);

  /// Local. The most bytes that this rank sends in one round.
  [[nodiscard]] std::uint64_t largest_round();

  /// Local. What this rank sends in the next round, by its lists.
  [[nodiscard]] Outgoing next_round();

  /// Local. Posts all messages of one round: those that come, in the order in which each rank sends them, and what `outgoing` says from
  /// `sent`.
  [[nodiscard]] std::vector<std::unique_ptr<Request>> post(const Outgoing& outgoing, std::span<const std::byte> sent,
                                                           std::span<const Incoming> incoming);

 private:
  Comm& comm_;
  std::vector<SliceListReader> lists_;  ///< by owner
};

}  // namespace unshard
