#include "extents.h"

#include <algorithm>
#include <string>

#include "crc32c.h"
#include "unshard/error.h"

namespace unshard {

ExtentBook::ExtentBook(const Plan& plan, int rank) : plan_(plan) {
  for (const Run& run : plan.runs[static_cast<std::size_t>(rank)]) {
    auto window = std::partition_point(plan.windows.begin(), plan.windows.end(),
                                       [&](const Window& w) { return w.file < run.file || (w.file == run.file && w.end <= run.begin); });
    for (std::uint64_t position = run.begin; position < run.end;) {
      const bool more = window != plan.windows.end() && window->file == run.file;
      const std::uint64_t limit = !more ? run.end : window->begin > position ? window->begin : window->end;
      if (more && limit == window->end) ++window;
      const std::uint64_t end = std::min(run.end, limit);
      entries_.push_back({{run.file, position, end, 0}, position, {}});
      position = end;
    }
  }
  std::sort(entries_.begin(), entries_.end(), [](const Entry& a, const Entry& b) {
    return std::pair(a.extent.file, a.extent.begin) < std::pair(b.extent.file, b.extent.begin);
  });
}

std::size_t ExtentBook::index_of(std::uint32_t file, std::uint64_t position) const {
  const auto entry = std::partition_point(entries_.begin(), entries_.end(), [&](const Entry& e) {
    return e.extent.file < file || (e.extent.file == file && e.extent.end <= position);
  });
  return static_cast<std::size_t>(entry - entries_.begin());
}

std::uint64_t ExtentBook::end_of(std::uint32_t file, std::uint64_t position) const {
  return entries_.at(index_of(file, position)).extent.end;
}

void ExtentBook::add(std::uint32_t file, std::uint64_t begin, std::uint64_t end, std::uint32_t crc32c) {
  const std::lock_guard lock(mutex_);
  Entry& entry = entries_.at(index_of(file, begin));
  entry.ahead.emplace(begin, std::pair(end, crc32c));
  for (auto next = entry.ahead.begin(); next != entry.ahead.end() && next->first == entry.done; next = entry.ahead.erase(next)) {
    const auto [piece_end, piece_crc] = next->second;
    entry.extent.crc32c = crc32c_joined(entry.extent.crc32c, piece_crc, piece_end - entry.done);
    entry.done = piece_end;
  }
}

std::vector<Extent> ExtentBook::finished() const {
  std::vector<Extent> extents;
  for (const Entry& entry : entries_) {
    if (entry.done != entry.extent.end) {
      throw Error(ErrorCode::internal, printable(plan_.layout.files[entry.extent.file].name) + ": bytes " + std::to_string(entry.done) +
                                           " to " + std::to_string(entry.extent.end) + " were not written");
    }
    extents.push_back(entry.extent);
  }
  return extents;
}

}  // namespace unshard
