// Comm over MPI: an own duplicate of a communicator, with MPI_ERRORS_RETURN and every call checked.
#pragma once

#include <mpi.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "unshard/comm.h"

namespace unshard {

/// Owns a communicator. Freed by the destructor unless MPI has been finalized.
class CommHandle {
 public:
  explicit CommHandle(MPI_Comm comm) : comm_(comm) {}
  ~CommHandle();
  CommHandle(const CommHandle&) = delete;
  CommHandle& operator=(const CommHandle&) = delete;
  [[nodiscard]] MPI_Comm get() const { return comm_; }

 private:
  MPI_Comm comm_;
};

/// Which ranks share a node, and what it is called. By rank.
struct NodeMap {
  std::vector<int> node;
  std::vector<std::string> host;
  int count = 0;
};

class MpiComm final : public Comm {
 public:
  /// Takes `comm` over. Local.
  MpiComm(MPI_Comm comm, NodeMap nodes);

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  int node_of(int rank) const override { return nodes_.node.at(rank); }
  int node_count() const override { return nodes_.count; }
  const std::string& host_of(int rank) const override { return nodes_.host.at(rank); }

  void barrier() override;
  std::uint64_t reduce_all(std::uint64_t value, Reduction how) override;
  void broadcast(Bytes& data, int root) override;
  std::vector<Bytes> gather_all(const Bytes& mine) override;
  std::vector<Bytes> gather(const Bytes& mine, int root) override;
  std::vector<Bytes> all_to_all(std::vector<Bytes> to_each) override;
  std::unique_ptr<Request> send(int to, int tag, std::span<const std::byte> data) override;
  std::unique_ptr<Request> receive(int from, int tag, std::span<std::byte> data) override;
  std::unique_ptr<Comm> split(int color) override;
  std::unique_ptr<SharedFile> open_shared(const std::string& path, const std::vector<std::pair<std::string, std::string>>& hints) override;

 private:
  [[nodiscard]] std::vector<std::uint64_t> sizes_of_all(std::uint64_t mine);
  void broadcast_pieces(std::span<std::byte> data, int root);
  void post_pieces(std::vector<MPI_Request>& requests, int to, std::span<const std::byte> data);
  void post_pieces(std::vector<MPI_Request>& requests, int from, std::span<std::byte> data);

  CommHandle comm_;
  NodeMap nodes_;
  int rank_ = 0;
  int size_ = 0;
};

}  // namespace unshard
