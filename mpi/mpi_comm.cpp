#include "mpi_comm.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "checked.h"
#include "collective_file.h"
#include "message.h"
#include "nodes.h"
#include "plain_shared_file.h"
#include "unshard/error.h"
#include "unshard/mpi/comm.h"

namespace unshard {

namespace {

constexpr int most_user_tag = 32766;  // the smallest upper bound of tags that MPI allows is 32767
constexpr int own_tag = 32767;

/// Up to so many bytes in all, one call of MPI gathers; above, pieces are sent.
constexpr std::uint64_t most_gathered_at_once = most_bytes_per_call;

void check_tag(int tag) {
  if (tag < 0 || tag > most_user_tag) throw Error(ErrorCode::internal, "message tag " + std::to_string(tag) + " is not in 0-32766");
}

MPI_Op operation_of(Reduction how) {
  if (how == Reduction::min) return MPI_MIN;
  return how == Reduction::max ? MPI_MAX : MPI_SUM;
}

std::vector<Bytes> buffers_of(const std::vector<std::uint64_t>& sizes) {
  std::vector<Bytes> buffers;
  for (const std::uint64_t size : sizes) buffers.emplace_back(size);
  return buffers;
}

/// Where each rank's bytes lie in one buffer, in MPI's terms.
struct Layout {
  std::vector<int> counts, displacements;

  explicit Layout(const std::vector<std::uint64_t>& sizes) {
    std::uint64_t at = 0;
    for (const std::uint64_t size : sizes) {
      counts.push_back(to_int(size));
      displacements.push_back(to_int(at));
      at += size;
    }
  }
  [[nodiscard]] std::vector<Bytes> split(const Bytes& all) const {
    std::vector<Bytes> parts;
    for (std::size_t i = 0; i < counts.size(); ++i) {
      const auto begin = all.begin() + displacements[i];
      parts.emplace_back(begin, begin + counts[i]);
    }
    return parts;
  }
};

/// Calls `piece` for parts of at most most_bytes_per_call.
template <class Span, class Piece>
void for_each_piece(Span data, Piece&& piece) {
  for (std::size_t at = 0; at < data.size(); at += most_bytes_per_call) {
    piece(data.subspan(at, std::min<std::size_t>(most_bytes_per_call, data.size() - at)));
  }
}

void wait_for_all(std::vector<MPI_Request>& requests, const char* call) {
  for (MPI_Request& request : requests) wait_for(request, call);
}

MPI_Comm duplicate(MPI_Comm comm) {
  MPI_Comm copy = MPI_COMM_NULL;
  check(MPI_Comm_dup(comm, &copy), "MPI_Comm_dup");
  check(MPI_Comm_set_errhandler(copy, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  return copy;
}

}  // namespace

CommHandle::~CommHandle() {
  int finalized = 0;
  MPI_Finalized(&finalized);
  if (finalized == 0 && comm_ != MPI_COMM_NULL) MPI_Comm_free(&comm_);
}

std::unique_ptr<Comm> mpi_comm(MPI_Comm communicator) {
  MPI_Comm own = duplicate(communicator);
  return std::make_unique<MpiComm>(own, find_nodes(own));
}

MpiComm::MpiComm(MPI_Comm comm, NodeMap nodes) : comm_(comm), nodes_(std::move(nodes)) {
  check(MPI_Comm_rank(comm, &rank_), "MPI_Comm_rank");
  check(MPI_Comm_size(comm, &size_), "MPI_Comm_size");
}

void MpiComm::barrier() {
  MPI_Request request = MPI_REQUEST_NULL;
  check(MPI_Ibarrier(comm_.get(), &request), "MPI_Ibarrier");
  wait_for(request, "MPI_Ibarrier");
}

std::uint64_t MpiComm::reduce_all(std::uint64_t value, Reduction how) {
  std::uint64_t result = 0;
  MPI_Request request = MPI_REQUEST_NULL;
  check(MPI_Iallreduce(&value, &result, 1, MPI_UINT64_T, operation_of(how), comm_.get(), &request), "MPI_Iallreduce");
  wait_for(request, "MPI_Iallreduce");
  return result;
}

void MpiComm::broadcast_pieces(std::span<std::byte> data, int root) {
  for_each_piece(data, [&](std::span<std::byte> piece) {
    MPI_Request request = MPI_REQUEST_NULL;
    check(MPI_Ibcast(piece.data(), to_int(piece.size()), MPI_BYTE, root, comm_.get(), &request), "MPI_Ibcast");
    wait_for(request, "MPI_Ibcast");
  });
}

void MpiComm::broadcast(Bytes& data, int root) {
  std::uint64_t size = data.size();
  broadcast_pieces(std::as_writable_bytes(std::span(&size, 1)), root);
  data.resize(size);
  broadcast_pieces(data, root);
}

std::vector<std::uint64_t> MpiComm::sizes_of_all(std::uint64_t mine) {
  std::vector<std::uint64_t> sizes(static_cast<std::size_t>(size_));
  MPI_Request request = MPI_REQUEST_NULL;
  check(MPI_Iallgather(&mine, 1, MPI_UINT64_T, sizes.data(), 1, MPI_UINT64_T, comm_.get(), &request), "MPI_Iallgather");
  wait_for(request, "MPI_Iallgather");
  return sizes;
}

std::vector<Bytes> MpiComm::gather_all(const Bytes& mine) {
  const std::vector<std::uint64_t> sizes = sizes_of_all(mine.size());
  const std::uint64_t total = std::accumulate(sizes.begin(), sizes.end(), std::uint64_t{0});
  if (total > most_gathered_at_once) {
    std::vector<Bytes> parts = buffers_of(sizes);
    parts[rank_] = mine;
    for (int root = 0; root < size_; ++root) broadcast_pieces(parts[root], root);
    return parts;
  }
  const Layout layout(sizes);
  Bytes all(total);
  MPI_Request request = MPI_REQUEST_NULL;
  check(MPI_Iallgatherv(mine.data(), to_int(mine.size()), MPI_BYTE, all.data(), layout.counts.data(), layout.displacements.data(), MPI_BYTE,
                        comm_.get(), &request),
        "MPI_Iallgatherv");
  wait_for(request, "MPI_Iallgatherv");
  return layout.split(all);
}

std::vector<Bytes> MpiComm::gather(const Bytes& mine, int root) {
  const std::vector<std::uint64_t> sizes = sizes_of_all(mine.size());
  std::vector<MPI_Request> requests;
  std::vector<Bytes> parts;
  if (rank_ == root) {
    parts = buffers_of(sizes);
    parts[root] = mine;
    for (int from = 0; from < size_; ++from) {
      if (from != root) post_pieces(requests, from, std::span(parts[from]));
    }
  } else {
    post_pieces(requests, root, std::span(mine));
  }
  wait_for_all(requests, "gather");
  return parts;
}

void MpiComm::post_pieces(std::vector<MPI_Request>& requests, int to, std::span<const std::byte> data) {
  for_each_piece(data, [&](std::span<const std::byte> piece) {
    check(MPI_Isend(piece.data(), to_int(piece.size()), MPI_BYTE, to, own_tag, comm_.get(), &requests.emplace_back()), "MPI_Isend");
  });
}

void MpiComm::post_pieces(std::vector<MPI_Request>& requests, int from, std::span<std::byte> data) {
  for_each_piece(data, [&](std::span<std::byte> piece) {
    check(MPI_Irecv(piece.data(), to_int(piece.size()), MPI_BYTE, from, own_tag, comm_.get(), &requests.emplace_back()), "MPI_Irecv");
  });
}

std::vector<Bytes> MpiComm::all_to_all(std::vector<Bytes> to_each) {
  if (to_each.size() != static_cast<std::size_t>(size_)) {
    throw Error(ErrorCode::internal,
                "all_to_all with " + std::to_string(to_each.size()) + " parts for " + std::to_string(size_) + " ranks");
  }
  std::vector<std::uint64_t> out, in(to_each.size());
  for (const Bytes& part : to_each) out.push_back(part.size());
  MPI_Request sizes = MPI_REQUEST_NULL;
  check(MPI_Ialltoall(out.data(), 1, MPI_UINT64_T, in.data(), 1, MPI_UINT64_T, comm_.get(), &sizes), "MPI_Ialltoall");
  wait_for(sizes, "MPI_Ialltoall");

  std::vector<Bytes> received = buffers_of(in);
  std::vector<MPI_Request> requests;
  received[rank_] = std::move(to_each[rank_]);
  for (int step = 1; step < size_; ++step) {  // each rank begins with its neighbour, so that nobody is asked by all at once
    const int from = (rank_ + size_ - step) % size_;
    post_pieces(requests, from, std::span(received[from]));
  }
  for (int step = 1; step < size_; ++step) {
    const int to = (rank_ + step) % size_;
    post_pieces(requests, to, std::span(std::as_const(to_each[to])));
  }
  wait_for_all(requests, "all_to_all");
  return received;
}

std::unique_ptr<Request> MpiComm::send(int to, int tag, std::span<const std::byte> data) {
  check_tag(tag);
  check_call_size(data.size(), "a message");
  MPI_Request request = MPI_REQUEST_NULL;
  check(MPI_Isend(data.data(), to_int(data.size()), MPI_BYTE, to, tag, comm_.get(), &request), "MPI_Isend");
  return std::make_unique<Message>(request, std::nullopt);
}

std::unique_ptr<Request> MpiComm::receive(int from, int tag, std::span<std::byte> data) {
  check_tag(tag);
  check_call_size(data.size(), "a message");
  MPI_Request request = MPI_REQUEST_NULL;
  check(MPI_Irecv(data.data(), to_int(data.size()), MPI_BYTE, from, tag, comm_.get(), &request), "MPI_Irecv");
  return std::make_unique<Message>(request, data.size());
}

std::unique_ptr<Comm> MpiComm::split(int color) {
  if (color < 0) throw Error(ErrorCode::internal, "split by color " + std::to_string(color));
  MPI_Comm part = MPI_COMM_NULL;
  check(MPI_Comm_split(comm_.get(), color, rank_, &part), "MPI_Comm_split");
  check(MPI_Comm_set_errhandler(part, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  return std::make_unique<MpiComm>(part, nodes_of_part(nodes_, comm_.get(), part));
}

std::unique_ptr<SharedFile> MpiComm::open_shared(const std::string& path, const std::vector<std::pair<std::string, std::string>>& hints) {
  return open_collective_file(*this, comm_.get(), path, hints);
}

}  // namespace unshard
