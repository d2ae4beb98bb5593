#include "settle.h"

#include <algorithm>
#include <utility>

#include "read_back.h"

namespace unshard {
namespace {

/// What is settled at once: a call for each piece would cost more than the waiting.
constexpr std::uint64_t batch_bytes = std::uint64_t{8} << 20;

void read_back(File& file, const Extent& piece, std::span<std::byte> buffer) {
  const std::uint64_t step = std::min<std::uint64_t>(buffer.size(), read_back_bytes);
  std::uint32_t found = 0;
  for (std::uint64_t at = piece.begin; at < piece.end; at += step) {
    found = checksum_of_written(file, at, buffer.first(std::min(step, piece.end - at)), found);
  }
  require_as_written(file, piece, found);
}

/// Not so: two runs of a merge that goes on, with what others wrote between them.
bool is_near(const Extent& range, const Extent& piece) {
  return piece.begin <= range.end + batch_bytes && range.begin <= piece.end + batch_bytes;
}

}  // namespace

void Settler::add(std::shared_ptr<File> file, const Extent& piece, std::span<std::byte> buffer) {
  std::vector<Written> batch;
  {
    const std::lock_guard lock(mutex_);
    if (waiting_.empty() || waiting_.back().file != file) ++waiting_files_;
    waiting_.push_back({std::move(file), piece});
    waiting_bytes_ += piece.end - piece.begin;
    if (is_too_long()) batch = take();
  }
  settle(batch, buffer);
}

void Settler::finish(std::span<std::byte> buffer) {
  while (true) {
    std::vector<Written> batch;
    {
      const std::lock_guard lock(mutex_);
      batch = take();
    }
    if (batch.empty()) return;
    settle(batch, buffer);
  }
}

void Settler::forget() {
  std::deque<Written> forgotten;  // its files are closed without the lock, which takes long where that waits for a server
  const std::lock_guard lock(mutex_);
  forgotten.swap(waiting_);
  waiting_bytes_ = 0;
  waiting_files_ = 0;
}

std::vector<Settler::Written> Settler::take() {
  std::vector<Written> batch;
  for (std::uint64_t bytes = 0; bytes < batch_bytes && !waiting_.empty();) {
    batch.push_back(std::move(waiting_.front()));
    waiting_.pop_front();
    bytes += batch.back().piece.end - batch.back().piece.begin;
    if (waiting_.empty() || waiting_.front().file != batch.back().file) --waiting_files_;
  }
  for (const Written& written : batch) waiting_bytes_ -= written.piece.end - written.piece.begin;
  return batch;
}

void Settler::settle(const std::vector<Written>& batch, std::span<std::byte> buffer) const {
  if (reads_back_) {
    for (const Written& written : batch) read_back(*written.file, written.piece, buffer);
  }
  for (auto first = batch.begin(); first != batch.end();) {
    Extent range = first->piece;
    auto next = first;
    for (; next != batch.end() && next->file == first->file && is_near(range, next->piece); ++next) {
      range.begin = std::min(range.begin, next->piece.begin);
      range.end = std::max(range.end, next->piece.end);
    }
    first->file->drop_cache(range.begin, range.end - range.begin);
    first = next;
  }
}

}  // namespace unshard
