#include "piece_digests.h"

#include <algorithm>

#include "chunk_wire.h"
#include "file_owners.h"
#include "piece_scan.h"
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
  job.kind = static_cast<PieceJob::Kind>(in.number_up_to(static_cast<std::uint64_t>(PieceJob::Kind::count)));
  job.from = dtype();
  job.to = dtype();
  const std::uint64_t rank = in.number_up_to(max_rank);
  job.chunk = read_chunk(in, 0, static_cast<std::size_t>(rank));
  return job;
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
  const std::vector<PieceDigest> results = run_piece_jobs(files, jobs);
  std::vector<Bytes> to_each;
  std::size_t next = 0;
  for (const std::size_t count : count_of) {
    WireWriter out;
    for (std::size_t i = 0; i < count; ++i, ++next) {
      out.raw(results[next].digest);
      out.number(results[next].non_finite.nan);
      out.number(results[next].non_finite.infinite);
      out.text(results[next].failure);
      out.number(static_cast<std::uint64_t>(results[next].code));
    }
    to_each.push_back(out.take());
  }
  return to_each;
}

std::vector<Bytes> questions(const Comm& comm, const ByteOwners& owners, const std::vector<PieceJob>& jobs) {
  std::vector<WireWriter> to_each(static_cast<std::size_t>(comm.size()));
  for (const PieceJob& job : jobs) write_job(to_each[static_cast<std::size_t>(owners.of(job.chunk))], job);
  std::vector<Bytes> result;
  for (WireWriter& out : to_each) result.push_back(out.take());
  return result;
}

std::vector<PieceDigest> in_order(const std::vector<Bytes>& received, const ByteOwners& owners, const std::vector<PieceJob>& jobs) {
  std::vector<WireReader> from_each;
  for (const Bytes& message : received) from_each.emplace_back(message);
  std::vector<PieceDigest> results;
  for (const PieceJob& job : jobs) {
    WireReader& in = from_each[static_cast<std::size_t>(owners.of(job.chunk))];
    PieceDigest result;
    const auto digest = in.raw(result.digest.size());
    std::copy(digest.begin(), digest.end(), result.digest.begin());
    result.non_finite.nan = in.number();
    result.non_finite.infinite = in.number();
    result.failure = in.text();
    result.code = static_cast<ErrorCode>(in.number_up_to(255));
    results.push_back(std::move(result));
  }
  return results;
}

}  // namespace

std::vector<PieceDigest> digest_pieces(Comm& comm, FileCache& files, const Source& source, const std::vector<PieceJob>& jobs) {
  if (comm.reduce_all(jobs.size(), Reduction::max) == 0) return {};
  const ByteOwners owners = collectively(comm, "compare", [&] { return ByteOwners(comm, source); });
  auto asked = collectively(comm, "compare", [&] { return questions(comm, owners, jobs); });
  const std::vector<Bytes> received = comm.all_to_all(std::move(asked));
  auto answered = collectively(comm, "compare", [&] { return answers(files, received); });
  const std::vector<Bytes> results = comm.all_to_all(std::move(answered));
  return collectively(comm, "compare", [&] { return in_order(results, owners, jobs); });
}

}  // namespace unshard
