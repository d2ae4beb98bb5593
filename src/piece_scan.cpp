// Jobs whose bytes lie one after the other (a record, a tensor without gaps inside it) become consumers of a scan: a range of a file that is
// read piece by piece, where every consumer gets its part of each piece. Ranges that overlap are one scan. Other jobs (strided views, casts,
// big-endian elements) read for themselves; they are rare.
#include "piece_scan.h"

#include <isa-l.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <optional>
#include <span>
#include <tuple>

#include "cast.h"
#include "non_finite.h"
#include "stored_elements.h"
#include "thread_loop.h"
#include "unshard/agree.h"

namespace unshard {
namespace {

constexpr std::uint64_t most_scan_piece_bytes = std::uint64_t{1} << 20U;

Digest crc_digest(std::uint32_t crc) {
  Digest digest{};
  for (std::size_t i = 0; i < 4; ++i) digest[i] = static_cast<std::byte>(crc >> (8 * i));
  return digest;
}

std::uint32_t add_to_crc(std::uint32_t crc, std::span<const std::byte> bytes) {
  return crc32_gzip_refl(crc, reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size());
}

bool is_row_major(const Chunk& chunk) {
  std::uint64_t expected = 1;
  for (std::size_t d = chunk.box.extent.size(); d-- > 0;) {
    if (chunk.box.extent[d] > 1 && chunk.strides[d] != expected) return false;
    expected *= chunk.box.extent[d];
  }
  return true;
}

struct Range {
  std::uint64_t begin = 0, end = 0;
};

/// Where the bytes of the job lie, if it can be a consumer of a scan.
std::optional<Range> range_of(const PieceJob& job) {
  const Chunk& chunk = job.chunk;
  if (job.kind == PieceJob::Kind::record) return Range{chunk.record_position, chunk.record_position + chunk.record_bytes};
  const bool dense = is_row_major(chunk);
  const bool as_stored = job.kind == PieceJob::Kind::span || (dense && !chunk.big_endian && (job.kind == PieceJob::Kind::count || job.from == job.to));
  if (!as_stored) return std::nullopt;
  return Range{chunk.position, chunk.position + span_bytes(chunk, job.from)};
}

/// The work of one job on bytes that come in order.
class Consumer {
 public:
  explicit Consumer(const PieceJob& job) : kind_(job.kind), counter_(job.from) {
    if (kind_ == PieceJob::Kind::elements || kind_ == PieceJob::Kind::span) sha_ = std::make_unique<Sha256>();
  }
  void add(std::span<const std::byte> bytes) {
    if (sha_) {
      sha_->add(bytes);
    } else if (kind_ == PieceJob::Kind::record) {
      crc_ = add_to_crc(crc_, bytes);
    } else {
      counter_.add(bytes);
    }
  }
  void finish(PieceDigest& result) {
    if (sha_) result.digest = sha_->digest();
    if (kind_ == PieceJob::Kind::record) result.digest = crc_digest(crc_);
    result.non_finite = counter_.total();
  }

 private:
  PieceJob::Kind kind_;
  std::unique_ptr<Sha256> sha_;
  std::uint32_t crc_ = 0;
  NonFiniteCounter counter_;
};

void fail(PieceDigest& result, const Error& error) {
  if (is_stop(error.code())) throw error;
  if (!result.failure.empty()) return;
  result.failure = error.what();
  result.code = error.code();
}

/// What decides the result of a job, in the order in which files are best read.
auto place_of(const PieceJob& job) {
  const bool record = job.kind == PieceJob::Kind::record;
  return std::tuple(job.chunk.file, record ? job.chunk.record_position : job.chunk.position, job.kind, record ? job.chunk.record_bytes : 0);
}

bool same_job(const PieceJob& a, const PieceJob& b) {
  if (place_of(a) != place_of(b)) return false;
  if (a.kind == PieceJob::Kind::record) return true;
  return a.from == b.from && a.to == b.to && a.chunk.box.extent == b.chunk.box.extent && a.chunk.strides == b.chunk.strides &&
         a.chunk.big_endian == b.chunk.big_endian;
}

class Scans {
 public:
  Scans(FileCache& files, const std::vector<PieceJob>& jobs) : files_(files), jobs_(jobs), results_(jobs.size()), same_as_(jobs.size()) {
    std::vector<std::size_t> order(jobs.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return place_of(jobs[a]) < place_of(jobs[b]); });
    for (std::size_t i = 0; i < order.size(); ++i) {
      const bool again = i > 0 && same_job(jobs[order[i]], jobs[order[i - 1]]);
      same_as_[order[i]] = again ? same_as_[order[i - 1]] : order[i];
      if (!again) add(order[i]);
    }
  }

  std::vector<PieceDigest> run() {
    const WorkLimits& all = files_.limits();
    const auto threads = static_cast<std::size_t>(
        std::clamp<std::uint64_t>(all.buffer_bytes / least_reading_bytes, 1, static_cast<std::uint64_t>(std::max(all.threads, 1))));
    WorkLimits each = all;
    each.buffer_bytes /= threads;
    loop_on_threads(scans_.size(), threads, [&](std::size_t i) { run(scans_[i], each); });
    stop_if_signalled(all);  // of a rank that was asked nothing
    for (std::size_t i = 0; i < results_.size(); ++i) {
      if (same_as_[i] != i) results_[i] = results_[same_as_[i]];
    }
    return std::move(results_);
  }

 private:
  struct Scan {
    FileId file = 0;
    Range range;
    std::vector<std::size_t> jobs;  ///< by begin of their ranges
    bool alone = false;             ///< one job that reads for itself
  };

  void add(std::size_t number) {
    const PieceJob& job = jobs_[number];
    const auto range = range_of(job);
    if (!range) {
      scans_.push_back({job.chunk.file, {}, {number}, true});
      return;
    }
    if (open_ && scans_[*open_].file == job.chunk.file && range->begin < scans_[*open_].range.end) {
      Scan& scan = scans_[*open_];
      scan.range.end = std::max(scan.range.end, range->end);
      scan.jobs.push_back(number);
      return;
    }
    open_ = scans_.size();
    scans_.push_back({job.chunk.file, *range, {number}, false});
  }

  void run(const Scan& scan, const WorkLimits& limits) {
    stop_if_signalled(limits);
    std::shared_ptr<File> file;
    if (const auto failure = attempt([&] { file = files_.get(scan.file); })) {
      for (const std::size_t job : scan.jobs) fail(results_[job], *failure);
    } else if (scan.alone) {
      run_alone(*file, scan.jobs.front(), limits);
    } else {
      read(*file, scan, limits);
    }
  }

  void read(File& file, const Scan& scan, const WorkLimits& limits) {
    std::vector<Range> ranges;
    std::vector<Consumer> consumers;
    for (const std::size_t job : scan.jobs) {
      ranges.push_back(*range_of(jobs_[job]));
      consumers.emplace_back(jobs_[job]);
    }
    const std::uint64_t most = std::min(reading_piece_bytes(limits), most_scan_piece_bytes);
    std::vector<std::byte> buffer(static_cast<std::size_t>(std::min(most, scan.range.end - scan.range.begin)));
    for (std::uint64_t begin = scan.range.begin; begin < scan.range.end; begin += buffer.size()) {
      stop_if_signalled(limits);
      const std::uint64_t end = std::min<std::uint64_t>(begin + buffer.size(), scan.range.end);
      const auto piece = std::span(buffer).first(static_cast<std::size_t>(end - begin));
      const auto failure = attempt([&] { file.read_at(begin, piece); });
      for (std::size_t i = 0; i < ranges.size(); ++i) {
        const std::uint64_t first = std::max(begin, ranges[i].begin), last = std::min(end, ranges[i].end);
        if (first >= last) continue;
        if (failure) {
          fail(results_[scan.jobs[i]], *failure);
        } else {
          consumers[i].add(piece.subspan(static_cast<std::size_t>(first - begin), static_cast<std::size_t>(last - first)));
        }
      }
    }
    for (std::size_t i = 0; i < consumers.size(); ++i) consumers[i].finish(results_[scan.jobs[i]]);
  }

  void run_alone(File& file, std::size_t number, const WorkLimits& limits) {
    const PieceJob& job = jobs_[number];
    PieceDigest& result = results_[number];
    const auto failure = attempt([&] {
      if (job.kind == PieceJob::Kind::count) {
        count(file, job, limits, result);
      } else {
        result.digest = digest(file, job, limits);
      }
    });
    if (failure) fail(result, *failure);
  }

  static void count(File& file, const PieceJob& job, const WorkLimits& limits, PieceDigest& result) {
    Chunk chunk = job.chunk;
    const std::uint64_t times = without_repeats(chunk);
    read_elements(file, chunk, job.from, limits, [&](std::span<std::byte> elements) {
      const NonFinite here = count_non_finite(elements, job.from);
      result.non_finite.nan += times * here.nan;
      result.non_finite.infinite += times * here.infinite;
    });
  }

  static Digest digest(File& file, const PieceJob& job, const WorkLimits& limits) {
    Sha256 sha;
    std::vector<std::byte> converted;  // of the types that can be cast, the largest has four times the bytes of the smallest
    read_elements(file, job.chunk, job.from, limits, [&](std::span<std::byte> bytes) {
      if (job.from == job.to) return sha.add(bytes);
      converted.resize(bytes.size() / info(job.from).size_bytes * info(job.to).size_bytes);
      cast(bytes, job.from, converted, job.to);
      sha.add(converted);
    });
    return sha.digest();
  }

  FileCache& files_;
  const std::vector<PieceJob>& jobs_;
  std::vector<PieceDigest> results_;
  std::vector<std::size_t> same_as_;  ///< by job: the job that has the same result
  std::vector<Scan> scans_;
  std::optional<std::size_t> open_;    ///< the scan that the next range may belong to
};

}  // namespace

std::vector<PieceDigest> run_piece_jobs(FileCache& files, const std::vector<PieceJob>& jobs) {
  return Scans(files, jobs).run();
}

}  // namespace unshard
