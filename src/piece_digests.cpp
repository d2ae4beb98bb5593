#include "piece_digests.h"

#include <isa-l.h>

#include <algorithm>
#include <numeric>
#include <tuple>

#include "cast.h"
#include "chunk_wire.h"
#include "file_owners.h"
#include "stored_elements.h"
#include "unshard/agree.h"
#include "unshard/file_cache.h"

namespace unshard {
namespace {

void write_job(WireWriter& out, const PieceJob& job) {
  out.number(static_cast<std::uint64_t>(job.kind));
  out.number(static_cast<std::uint64_t>(job.from));
  out.number(static_cast<std::uint64_t>(job.to));
  out.number(job.chunk.box.extent.size());
  write_chunk(out, job.chunk);
}

PieceJob read_job(WireReader& in) {
  const auto dtype = [&] { return static_cast<DType>(in.number_up_to(static_cast<std::uint64_t>(DType::c128))); };
  PieceJob job;
  job.kind = static_cast<PieceJob::Kind>(in.number_up_to(static_cast<std::uint64_t>(PieceJob::Kind::record)));
  job.from = dtype();
  job.to = dtype();
  const std::uint64_t rank = in.number_up_to(max_rank);
  job.chunk = read_chunk(in, 0, static_cast<std::size_t>(rank));
  return job;
}

Digest crc_digest(std::uint32_t crc) {
  Digest digest{};
  for (std::size_t i = 0; i < 4; ++i) digest[i] = static_cast<std::byte>(crc >> (8 * i));
  return digest;
}

Digest run(File& file, const PieceJob& job, const WorkLimits& limits) {
  const Chunk& chunk = job.chunk;
  if (job.kind == PieceJob::Kind::record) {
    std::uint32_t crc = 0;
    read_range(file, chunk.record_position, chunk.record_bytes, limits, [&](std::span<std::byte> bytes) {
      crc = crc32_gzip_refl(crc, reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size());
    });
    return crc_digest(crc);
  }
  Sha256 sha;
  if (job.kind == PieceJob::Kind::span) {
    read_range(file, chunk.position, span_bytes(chunk, job.from), limits, [&](std::span<std::byte> bytes) { sha.add(bytes); });
  } else {
    std::vector<std::byte> converted;  // of the types that can be cast, the largest has four times the bytes of the smallest
    read_elements(file, chunk, job.from, limits, [&](std::span<std::byte> bytes) {
      if (job.from == job.to) return sha.add(bytes);
      converted.resize(bytes.size() / info(job.from).size_bytes * info(job.to).size_bytes);
      cast(bytes, job.from, converted, job.to);
      sha.add(converted);
    });
  }
  return sha.digest();
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

PieceDigest run_guarded(FileCache& files, const PieceJob& job) {
  PieceDigest result;
  const auto failure = attempt([&] { result.digest = run(*files.get(job.chunk.file), job, files.limits()); });
  if (failure) {
    if (is_stop(failure->code())) throw *failure;
    result.failure = failure->what();
    result.code = failure->code();
  }
  return result;
}

/// Results of the jobs in one message, in their order.
std::vector<Bytes> answers(FileCache& files, const std::vector<Bytes>& received) {
  std::vector<PieceJob> jobs;
  std::vector<std::size_t> count_of;
  for (const Bytes& message : received) {
    const std::size_t before = jobs.size();
    for (WireReader in(message); !in.at_end();) jobs.push_back(read_job(in));
    count_of.push_back(jobs.size() - before);
  }
  std::vector<std::size_t> order(jobs.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return place_of(jobs[a]) < place_of(jobs[b]); });
  std::vector<PieceDigest> results(jobs.size());
  for (std::size_t i = 0; i < order.size(); ++i) {
    const bool again = i > 0 && same_job(jobs[order[i]], jobs[order[i - 1]]);
    results[order[i]] = again ? results[order[i - 1]] : run_guarded(files, jobs[order[i]]);
  }
  stop_if_signalled(files.limits());  // of a rank that was asked nothing
  std::vector<Bytes> to_each;
  std::size_t next = 0;
  for (const std::size_t count : count_of) {
    WireWriter out;
    for (std::size_t i = 0; i < count; ++i, ++next) {
      out.raw(results[next].digest);
      out.text(results[next].failure);
      out.number(static_cast<std::uint64_t>(results[next].code));
    }
    to_each.push_back(out.take());
  }
  return to_each;
}

std::vector<Bytes> questions(const Comm& comm, const std::vector<int>& owners, const std::vector<PieceJob>& jobs) {
  std::vector<WireWriter> to_each(static_cast<std::size_t>(comm.size()));
  for (const PieceJob& job : jobs) write_job(to_each[static_cast<std::size_t>(owners.at(job.chunk.file))], job);
  std::vector<Bytes> result;
  for (WireWriter& out : to_each) result.push_back(out.take());
  return result;
}

std::vector<PieceDigest> in_order(const std::vector<Bytes>& received, const std::vector<int>& owners, const std::vector<PieceJob>& jobs) {
  std::vector<WireReader> from_each;
  for (const Bytes& message : received) from_each.emplace_back(message);
  std::vector<PieceDigest> results;
  for (const PieceJob& job : jobs) {
    WireReader& in = from_each[static_cast<std::size_t>(owners[job.chunk.file])];
    PieceDigest result;
    const auto digest = in.raw(result.digest.size());
    std::copy(digest.begin(), digest.end(), result.digest.begin());
    result.failure = in.text();
    result.code = static_cast<ErrorCode>(in.number_up_to(255));
    results.push_back(std::move(result));
  }
  return results;
}

}  // namespace

std::vector<PieceDigest> digest_pieces(Comm& comm, FileCache& files, const Source& source, const std::vector<PieceJob>& jobs) {
  if (comm.reduce_all(jobs.size(), Reduction::max) == 0) return {};
  std::vector<int> owners;
  auto asked = collectively(comm, "compare", [&] {
    owners = file_owners(comm, source);
    return questions(comm, owners, jobs);
  });
  const std::vector<Bytes> received = comm.all_to_all(std::move(asked));
  auto answered = collectively(comm, "compare", [&] { return answers(files, received); });
  const std::vector<Bytes> results = comm.all_to_all(std::move(answered));
  return collectively(comm, "compare", [&] { return in_order(results, owners, jobs); });
}

}  // namespace unshard
