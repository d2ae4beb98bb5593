// Ranks, as the core sees them. One interface, three versions: one process (self_comm), ranks as threads of one process with seeded
// schedules (in_process_comm.h, for tests), and MPI (mpi/mpi_comm.h). Core code includes this and never mpi.h.
//
// Every function is Collective over the communicator unless it says Local. A failure of MPI itself throws Error(mpi).
// No exception of a rank's own work may cross a collective call: see agree.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace unshard {

using Bytes = std::vector<std::byte>;

/// Most bytes of one message and of one collective write: far below where MPI libraries count in `int`.
inline constexpr std::uint64_t most_bytes_per_call = std::uint64_t{256} << 20;

/// A message under way. Owned by the caller; the request and the buffer given must live until it is done, also when the caller has failed.
/// The sizes given to send and receive are equal.
class Request {
 public:
  virtual ~Request() = default;
  /// Local. Whether it has ended; once true, stays true.
  [[nodiscard]] virtual bool test() = 0;
  /// Local. Returns when it has ended. By default tests with short sleeps in between.
  virtual void wait();
};

/// A file that several ranks write together (MPI_File). Opened by Comm::open_shared; the file exists and has its final size.
class SharedFile {
 public:
  virtual ~SharedFile() = default;
  /// Collective over the ranks that opened it: each writes its own range (which may be empty); at most most_bytes_per_call. A failed
  /// or short write on this rank throws on this rank only, after the collective call has ended everywhere.
  virtual void write_at_all(std::uint64_t position, std::span<const std::byte> from) = 0;
  /// Collective. Errors are reported here, never by the destructor.
  virtual void close() = 0;
};

enum class Reduction : std::uint8_t { min, max, sum };

class Comm {
 public:
  virtual ~Comm() = default;
  [[nodiscard]] virtual int rank() const = 0;  ///< Local.
  [[nodiscard]] virtual int size() const = 0;  ///< Local.
  /// Local. The node of `rank`, numbered from 0 in order of first rank, and its host name.
  [[nodiscard]] virtual int node_of(int rank) const = 0;
  [[nodiscard]] virtual int node_count() const = 0;
  [[nodiscard]] virtual const std::string& host_of(int rank) const = 0;

  virtual void barrier() = 0;
  [[nodiscard]] virtual std::uint64_t reduce_all(std::uint64_t value, Reduction how) = 0;
  /// `data` of `root` replaces `data` of everybody (sizes may differ before).
  virtual void broadcast(Bytes& data, int root) = 0;
  /// The data of all ranks, by rank, on every rank.
  [[nodiscard]] virtual std::vector<Bytes> gather_all(const Bytes& mine) = 0;
  /// The data of all ranks, by rank, on `root`; elsewhere empty.
  [[nodiscard]] virtual std::vector<Bytes> gather(const Bytes& mine, int root) = 0;
  /// `to_each[r]` goes to rank r; returns what each rank sent here, by rank. Any sizes (more than 2 GiB too).
  [[nodiscard]] virtual std::vector<Bytes> all_to_all(std::vector<Bytes> to_each) = 0;

  /// Local. Messages of at most most_bytes_per_call; matched by sender and tag, in order.
  [[nodiscard]] virtual std::unique_ptr<Request> send(int to, int tag, std::span<const std::byte> data) = 0;
  [[nodiscard]] virtual std::unique_ptr<Request> receive(int from, int tag, std::span<std::byte> data) = 0;

  /// Ranks with the same `color` form a new communicator, ordered by rank.
  [[nodiscard]] virtual std::unique_ptr<Comm> split(int color) = 0;
  /// Opens an existing file for collective writing. `hints`: MPI-IO info keys. Throws on every rank if any rank fails.
  [[nodiscard]] virtual std::unique_ptr<SharedFile> open_shared(const std::string& path,
                                                                const std::vector<std::pair<std::string, std::string>>& hints) = 0;
};

/// The communicator of a plain command: one rank on this host, no MPI.
[[nodiscard]] std::unique_ptr<Comm> self_comm();

/// Local. Waits for all of `requests` by testing them, with short sleeps in between: on few cores a spinning rank takes the core of
/// one that reads.
void wait_all(std::span<const std::unique_ptr<Request>> requests);

}  // namespace unshard
