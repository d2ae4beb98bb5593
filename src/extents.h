// The extents of a move: what of each window this rank writes, with a checksum that is put together from pieces written in any order.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "unshard/move.h"
#include "unshard/plan.h"

namespace unshard {

class ExtentBook {
 public:
  /// The runs of `rank`, cut where windows end.
  ExtentBook(const Plan& plan, int rank);

  /// Where the extent ends that the byte at `position` belongs to: no piece may go beyond.
  [[nodiscard]] std::uint64_t end_of(std::uint32_t file, std::uint64_t position) const;

  /// Thread-safe. Notes a piece that has been written.
  void add(std::uint32_t file, std::uint64_t begin, std::uint64_t end, std::uint32_t crc32c);

  /// The extents, sorted by file and position. Throws Error(internal) naming the file when pieces are missing.
  [[nodiscard]] std::vector<Extent> finished() const;

 private:
  struct Entry {
    Extent extent;
    std::uint64_t done = 0;                                                  ///< the checksum covers the bytes up to here
    std::map<std::uint64_t, std::pair<std::uint64_t, std::uint32_t>> ahead;  ///< later pieces: begin → end, checksum
  };
  [[nodiscard]] std::size_t index_of(std::uint32_t file, std::uint64_t position) const;

  const Plan& plan_;
  std::vector<Entry> entries_;
  std::mutex mutex_;
};

}  // namespace unshard
