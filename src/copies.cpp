#include "copies.h"

#include <algorithm>
#include <cstdio>
#include <map>
#include <set>

#include "checked_math.h"
#include "chunk_order.h"
#include "piece_digests.h"
#include "side_state.h"
#include "stored_elements.h"
#include "unshard/agree.h"

namespace unshard {
namespace {

/// Chunks first .. first + count - 1 have the same box.
struct Group {
  std::size_t first = 0, count = 0;
};

enum class Verdict : std::uint8_t { equal, by_crc, by_reading };

std::vector<Group> groups_of_copies(const std::vector<Chunk>& chunks) {
  std::vector<Group> groups;
  for (std::size_t first = 0; first < chunks.size();) {
    std::size_t end = first + 1;
    while (end < chunks.size() && chunks[end].tensor == chunks[first].tensor && chunks[end].box == chunks[first].box) ++end;
    if (end - first > 1) groups.push_back({first, end - first});
    first = end;
  }
  return groups;
}

Verdict judge(std::span<const Chunk> copies, DType dtype, bool deep) {
  const Chunk& first = copies.front();
  const auto all = [&](auto condition) { return std::all_of(copies.begin(), copies.end(), condition); };
  if (all([&](const Chunk& copy) { return aliased(copy, first); })) return Verdict::equal;
  if (deep || !all([&](const Chunk& copy) { return copy.has_crc && same_geometry(copy, first); })) return Verdict::by_reading;
  if (all([&](const Chunk& copy) { return copy.record_crc == first.record_crc; })) return Verdict::equal;
  return is_whole_record(first, dtype) ? Verdict::by_crc : Verdict::by_reading;
}

bool same_strides(const Chunk& a, const Chunk& b) {
  for (std::size_t d = 0; d < a.box.extent.size(); ++d) {
    if (a.box.extent[d] > 1 && a.strides[d] != b.strides[d]) return false;
  }
  return true;
}

std::uint64_t stored_bytes(const Chunk& chunk, DType dtype) {
  return checked_multiply(volume(chunk.box.extent), info(dtype).size_bytes).value_or(UINT64_MAX);
}

/// How to read the copies of one piece so that equal results mean equal pieces; none when no way is bounded.
std::vector<PieceJob> jobs_for(std::span<const Chunk> copies, DType dtype) {
  const Chunk& first = copies.front();
  const bool alike =
      std::all_of(copies.begin(), copies.end(), [&](const Chunk& c) { return same_strides(c, first) && c.big_endian == first.big_endian; });
  std::vector<PieceJob> jobs;
  for (const Chunk& copy : copies) {
    PieceJob job{PieceJob::Kind::elements, copy, dtype, dtype};
    if (alike && span_bytes(copy, dtype) <= stored_bytes(copy, dtype)) job.kind = PieceJob::Kind::span;
    if (alike) {  // what repeats in all of them is read once
      for (std::size_t d = 0; d < copy.strides.size(); ++d) {
        if (copy.strides[d] == 0) job.chunk.box.extent[d] = 1;
      }
    }
    if (job.kind == PieceJob::Kind::elements && !is_readable(job.chunk, dtype)) return {};
    jobs.push_back(std::move(job));
  }
  return jobs;
}

/// The copies of one tensor that are in the minority, over all its pieces.
class Difference {
 public:
  /// `keys` of the copies, equal where the copies are.
  void add(std::span<const Chunk> copies, const std::vector<std::string>& keys) {
    std::map<std::string_view, std::size_t> votes;
    for (const std::string& key : keys) ++votes[key];
    std::size_t right = 0;
    for (std::size_t i = 1; i < keys.size(); ++i) {
      if (votes[keys[i]] > votes[keys[right]]) right = i;
    }
    for (std::size_t i = 0; i < keys.size(); ++i) {
      if (keys[i] == keys[right]) continue;
      if (odd_.empty()) {
        good_ = copies[right].file;
        box_ = copies[i].box;
      }
      odd_.insert(copies[i].file);
    }
  }
  [[nodiscard]] bool empty() const { return odd_.empty(); }
  [[nodiscard]] std::string text(const Source& source, const Shape& shape) const {
    const std::string where = box_ == whole(shape) ? "" : " in " + to_string(box_);
    const std::string good_label = printable(source.files[good_].label, 4096);
    const std::string odd_label = printable(source.files[*odd_.begin()].label, 4096);
    const std::string advice = "; every copy should hold the same values";
    if (source.world_size == 0) return "the copy in " + odd_label + " differs from that in " + good_label + where + advice;
    std::vector<std::uint64_t> ranks;
    for (const FileId file : odd_) ranks.push_back(source.files[file].rank);
    std::sort(ranks.begin(), ranks.end());
    const std::string from = " from that of rank " + std::to_string(source.files[good_].rank) + where;
    if (ranks.size() > 1) return "the copies of ranks " + as_ranges(ranks) + " differ" + from + " (" + odd_label + " and others)" + advice;
    return "the copy of rank " + std::to_string(ranks.front()) + " differs" + from + " (" + odd_label + ")" + advice;
  }

 private:
  std::set<FileId> odd_;
  FileId good_ = 0;
  Box box_;
};

std::string hex(std::uint32_t crc) {
  char text[16];
  std::snprintf(text, sizeof text, "0x%08x", crc);
  return text;
}

std::uint32_t crc_of(const Digest& digest) {
  std::uint32_t crc = 0;
  for (std::size_t i = 0; i < 4; ++i) crc |= std::to_integer<std::uint32_t>(digest[i]) << (8 * i);
  return crc;
}

class CopyComparison {
 public:
  CopyComparison(const Source& source, const Catalog& catalog, const CoverageOptions& options)
      : source_(source), catalog_(catalog), options_(options) {}

  /// What must be read to decide.
  [[nodiscard]] std::vector<PieceJob> prepare() {
    std::vector<PieceJob> jobs;
    for (const Group& group : groups_of_copies(catalog_.chunks)) {
      const auto copies = std::span(catalog_.chunks).subspan(group.first, group.count);
      const TensorRow& row = catalog_.tensors[copies.front().tensor];
      const Verdict verdict = judge(copies, row.dtype, options_.deep);
      if (verdict == Verdict::equal || (verdict == Verdict::by_reading && !options_.compare_payload && !options_.deep)) continue;
      Pending pending{group, jobs.size(), verdict};
      if (verdict == Verdict::by_reading) {
        const auto more = jobs_for(copies, row.dtype);
        if (more.empty()) {
          add(copies.front().tensor, row.name, "its copies repeat their elements in different ways and can't be compared",
              ErrorCode::unsupported);
          continue;
        }
        jobs.insert(jobs.end(), more.begin(), more.end());
      }
      pending_.push_back(pending);
    }
    first_deep_ = jobs.size();
    if (!options_.deep) return jobs;
    for (const Chunk& chunk : catalog_.chunks) {
      const DType dtype = catalog_.tensors[chunk.tensor].dtype;
      if (chunk.has_crc) jobs.push_back({PieceJob::Kind::record, chunk, dtype, dtype});
      Chunk once = chunk;
      (void)without_repeats(once);
      // Rows that overlap may claim more elements than could ever be read.
      if (is_readable(once, dtype)) jobs.push_back({PieceJob::Kind::count, chunk, dtype, dtype});
    }
    return jobs;
  }

  [[nodiscard]] CopyFindings conclude(const std::vector<PieceDigest>& results) {
    std::map<TensorId, Difference> differences;
    for (const Pending& pending : pending_) {
      const auto copies = std::span(catalog_.chunks).subspan(pending.group.first, pending.group.count);
      std::vector<Chunk> readable;
      std::vector<std::string> keys;
      for (std::size_t i = 0; i < copies.size(); ++i) {
        if (pending.verdict == Verdict::by_crc) {
          keys.push_back(std::to_string(copies[i].record_crc));
        } else if (const PieceDigest& result = results[pending.first_job + i]; result.failure.empty()) {
          keys.emplace_back(reinterpret_cast<const char*>(result.digest.data()), result.digest.size());
        } else {
          if (!options_.deep) add_failure(copies[i], result);  // deep: by check_all
          continue;
        }
        readable.push_back(copies[i]);
      }
      if (!readable.empty()) differences[copies.front().tensor].add(readable, keys);
    }
    for (const auto& [tensor, difference] : differences) {
      const TensorRow& row = catalog_.tensors[tensor];
      if (!difference.empty()) add(tensor, row.name, difference.text(source_, row.shape), ErrorCode::bad_input);
    }
    check_all(results);
    std::stable_sort(found_.findings.begin(), found_.findings.end(),
                     [](const TensorFinding& a, const TensorFinding& b) { return a.tensor < b.tensor; });
    return std::move(found_);
  }

 private:
  struct Pending {
    Group group;
    std::size_t first_job = 0;
    Verdict verdict = Verdict::by_reading;
  };

  void add(TensorId tensor, const std::string& subject, const std::string& text, ErrorCode code) {
    found_.findings.push_back({tensor, {is_side_state(subject) ? Severity::note : Severity::error, subject, text, code}});
  }
  void add_failure(const Chunk& chunk, const PieceDigest& result) {
    const std::string text = printable(catalog_.tensors[chunk.tensor].name) + " can't be read: " + result.failure;
    add(chunk.tensor, source_.files[chunk.file].label, text, result.code);
  }
  /// What `deep` asked of each piece, in the order of the jobs.
  void check_all(const std::vector<PieceDigest>& results) {
    std::size_t next = first_deep_;
    const Chunk* before = nullptr;
    for (const Chunk& chunk : catalog_.chunks) {
      if (next == results.size()) return;
      const PieceDigest* unreadable = nullptr;
      if (chunk.has_crc) {
        const PieceDigest& record = results[next++];
        if (!record.failure.empty()) unreadable = &record;
        if (record.failure.empty() && crc_of(record.digest) != chunk.record_crc) add_damage(chunk, crc_of(record.digest));
      }
      Chunk once = chunk;
      (void)without_repeats(once);
      if (is_readable(once, catalog_.tensors[chunk.tensor].dtype)) {
        const PieceDigest& counted = results[next++];
        if (!counted.failure.empty()) unreadable = &counted;
        const bool is_copy = before != nullptr && before->tensor == chunk.tensor && before->box == chunk.box;
        if (!is_copy) add_count(chunk.tensor, counted.non_finite);
      }
      if (unreadable != nullptr) add_failure(chunk, *unreadable);
      before = &chunk;
    }
  }
  void add_damage(const Chunk& chunk, std::uint32_t crc) {
    add(chunk.tensor, source_.files[chunk.file].label,
        "the data of " + printable(catalog_.tensors[chunk.tensor].name) + " is damaged: its CRC-32 is " + hex(crc) +
            ", the zip directory says " + hex(chunk.record_crc) + "; copy the file again",
        ErrorCode::bad_input);
  }
  void add_count(TensorId tensor, const NonFinite& counted) {
    if (counted.nan == 0 && counted.infinite == 0) return;
    NonFinite& of = found_.non_finite[tensor];
    of.nan += counted.nan;
    of.infinite += counted.infinite;
  }

  const Source& source_;
  const Catalog& catalog_;
  CoverageOptions options_;
  std::vector<Pending> pending_;
  std::size_t first_deep_ = 0;
  CopyFindings found_;
};

}  // namespace

bool same_geometry(const Chunk& a, const Chunk& b) {
  return a.record_bytes == b.record_bytes && a.position - a.record_position == b.position - b.record_position &&
         a.big_endian == b.big_endian && same_strides(a, b);
}

bool aliased(const Chunk& a, const Chunk& b) {
  return a.file == b.file && a.position == b.position && a.big_endian == b.big_endian && same_strides(a, b);
}

bool is_whole_record(const Chunk& chunk, DType dtype) {
  return chunk.position == chunk.record_position && chunk.record_bytes == stored_bytes(chunk, dtype) &&
         chunk.record_bytes == span_bytes(chunk, dtype);
}

bool is_readable(const Chunk& chunk, DType dtype) {
  constexpr std::uint64_t always = std::uint64_t{1} << 30U;
  constexpr std::uint64_t repeats = 16;
  return stored_bytes(chunk, dtype) <= std::max(always, checked_multiply(chunk.record_bytes, repeats).value_or(UINT64_MAX));
}

CopyFindings compare_copies(Comm& comm, FileCache& files, const Source& source, const Catalog& catalog,
                                          const CoverageOptions& options) {
  CopyComparison comparison(source, catalog, options);
  const auto jobs = collectively(comm, "compare", [&] { return comparison.prepare(); });
  const auto results = digest_pieces(comm, files, source, jobs);
  return collectively(comm, "compare", [&] { return comparison.conclude(results); });
}

}  // namespace unshard
