#include "runtime.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <exception>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "back_off.h"
#include "checked.h"
#include "unshard/agree.h"
#include "unshard/mpi/comm.h"
#include "value_bytes.h"

namespace unshard {

namespace {

/// How long a failed rank waits for the others before it ends the job. Lower ranks first, so that one of them speaks.
std::chrono::milliseconds patience(int rank) {
  return std::chrono::milliseconds(4000 + 100 * std::min(rank, 20));
}

constexpr std::chrono::milliseconds time_for_the_line{500};

bool mpi_is_running() {
  int started = 0, ended = 0;
  MPI_Initialized(&started);
  MPI_Finalized(&ended);
  return started != 0 && ended == 0;
}

/// Open MPI tries the transports of a cluster first, which costs 0.2 s; on one node only shared memory can win. (With tcp in the list,
/// Open MPI 5 prints that it finds no pair of addresses where a node has none.) What the user has set stays.
void prefer_shared_memory() {
#ifdef OMPI_MAJOR_VERSION
  constexpr const char* transports = OMPI_MAJOR_VERSION < 5 ? "self,vader" : "self,sm";
  setenv("OMPI_MCA_pml", "ob1", 0);
  setenv("OMPI_MCA_btl", transports, 0);
#endif
}

/// A rank that waits inside a collective write asks again and again, and takes the core that an I/O thread needs. What the user has set
/// stays.
void yield_while_waiting() {
#ifdef OMPI_MAJOR_VERSION
  setenv("OMPI_MCA_mpi_yield_when_idle", "1", 0);
#endif
}

/// How ompio writes together on one node. Components that gather the bytes of all ranks into one do so in a buffer of 32 MiB, too large for
/// the cache of a core: 2.3 s instead of 5.1 s for 3 GB with vulcan and 1 MiB. And `individual` writes what it is given in calls of up to
/// io_ompio_cycle_buffer_size, 512 MiB: each holds the file's lock, for which the other rank spins (with calls of 1 MiB 1.35 times as long
/// as `--io posix`, with 256 KiB 0.9). What the user has set stays.
void write_in_short_calls() {
#ifdef OMPI_MAJOR_VERSION
  setenv("OMPI_MCA_io_ompio_bytes_per_agg", "1048576", 0);
  setenv("OMPI_MCA_io_ompio_cycle_buffer_size", "262144", 0);
#endif
}

/// Ranks write long ranges that do not overlap. Open MPI's default for files of several nodes (vulcan) first sends them to a few of the
/// ranks: with shards on the disks of four hosts 594 MB crossed the network instead of 265 MB, in twice the time. What the user has set
/// stays.
void write_where_the_bytes_are() {
#ifdef OMPI_MAJOR_VERSION
  setenv("OMPI_MCA_fcoll", "individual", 0);
#endif
}

/// Open MPI ends the process, with a page of text, when srun offers it no way to find the other tasks.
bool would_not_start(const Launch& launch) {
#ifdef OMPI_MAJOR_VERSION
  return !launch.can_connect;
#else
  (void)launch;
  return false;
#endif
}

/// Under srun a rank that dies while MPI starts, before there is a lifeline, leaves the others waiting for ever (seen with Open MPI 4.1:
/// one crashed in its start-up, the others stayed in MPI_Comm_dup). From its construction to its destruction there is so much time.
class StartLimit {
 public:
  explicit StartLimit(bool speaks) : thread_([this, speaks] { watch(speaks); }) {}
  ~StartLimit() {
    {
      const std::lock_guard lock(mutex_);
      started_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }
  StartLimit(const StartLimit&) = delete;
  StartLimit& operator=(const StartLimit&) = delete;

 private:
  static constexpr std::chrono::seconds limit{120};

  void watch(bool speaks) {
    std::unique_lock lock(mutex_);
    if (changed_.wait_for(lock, limit, [&] { return started_; })) return;
    if (speaks)
      print_error("start: the ranks did not all come together within " + std::to_string(limit.count()) +
                  " s: one of them may have died, or a node may not reach another; see what the launcher says");
    _exit(static_cast<int>(ErrorCode::mpi));
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  bool started_ = false;
  std::thread thread_;  // last, so that it sees the others
};

/// What a rank does when another one has died. Slurm ends the step, and what is on its way to the user with it, soon after the first task
/// that leaves MPI so: none does before the line has had time to get there.
Lifeline::OnLoss end_after_loss(const Comm& comm) {
  std::vector<std::string> hosts;
  for (int rank = 0; rank < comm.size(); ++rank) hosts.push_back(comm.host_of(rank));
  return [hosts](int rank, bool speaks) {
    if (speaks) {
      print_error(
          "ranks: rank " + std::to_string(rank) + " on " + hosts[static_cast<std::size_t>(rank)] +
          ": has died (killed, or out of memory, or its node has failed); see what its node says, then start the same command again");
    }
    std::this_thread::sleep_for(time_for_the_line);
    _exit(static_cast<int>(ErrorCode::mpi));
  };
}

}  // namespace

void print_error(const std::string& text) {
  std::string line = "unshard: error: " + text;
  std::replace(line.begin(), line.end(), '\n', ' ');
  line += '\n';
  std::size_t at = 0;
  while (at < line.size()) {
    const ssize_t count = ::write(STDERR_FILENO, line.data() + at, line.size() - at);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return;
    at += static_cast<std::size_t>(count);
  }
}

void end_job_on_terminate() {
  std::set_terminate([] {
    print_error(std::current_exception() ? std::string("internal: ") + current_error().what() : "internal: the program has ended itself");
    if (mpi_is_running()) MPI_Abort(MPI_COMM_WORLD, static_cast<int>(ErrorCode::internal));
    _exit(static_cast<int>(ErrorCode::internal));
  });
}

Runtime::Runtime(const Launch& launch) {
  if (!launch.needs_mpi()) {
    comm_ = self_comm();
    return;
  }
  if (would_not_start(launch)) throw Error(ErrorCode::mpi, "start: " + advice_for_singletons(launch));
  if (launch.one_node) {
    prefer_shared_memory();
    write_in_short_calls();
  }
  yield_while_waiting();
  write_where_the_bytes_are();
  std::optional<StartLimit> start_limit;
  if (!launch.ends_together) start_limit.emplace(launch.rank == 0);
  int provided = MPI_THREAD_SINGLE, size = 1;
  check(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &provided), "MPI_Init_thread");
  uses_mpi_ = true;
  check(MPI_Comm_size(MPI_COMM_WORLD, &size), "MPI_Comm_size");
  const bool alone = size == 1;
  if (alone || provided < MPI_THREAD_FUNNELED) {
    MPI_Finalize();
    uses_mpi_ = false;
    throw Error(ErrorCode::mpi,
                "start: " + (alone ? advice_for_singletons(launch) : "this MPI library can't be used by a program with threads"));
  }
  // Calls without a communicator (MPI_Info_set) have the error handler of these; copies inherit it.
  for (const MPI_Comm comm : {MPI_COMM_WORLD, MPI_COMM_SELF})
    check(MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  check(MPI_Comm_dup(MPI_COMM_WORLD, &closing_), "MPI_Comm_dup");
  comm_ = mpi_comm(MPI_COMM_WORLD);
  if (!launch.ends_together) lifeline_ = std::make_unique<Lifeline>(*comm_, end_after_loss(*comm_));
}

Runtime::~Runtime() {
  comm_.reset();
  if (!uses_mpi_ || !mpi_is_running()) return;
  MPI_Comm_free(&closing_);
  MPI_Finalize();
}

/// Returns when every rank has come here. A rank that has failed does not wait for ever.
void Runtime::meet(const Ending& mine) {
  MPI_Request request = MPI_REQUEST_NULL;
  check(MPI_Ibarrier(closing_, &request), "MPI_Ibarrier");
  const auto began = std::chrono::steady_clock::now();
  BackOff back_off;
  for (int done = 0; done == 0;) {
    check(MPI_Test(&request, &done, MPI_STATUS_IGNORE), "MPI_Test");
    if (done != 0) return;
    if (mine.code != 0 && std::chrono::steady_clock::now() - began > patience(comm_->rank())) {
      print_error(mine.text + "; other ranks did not end with this one");
      MPI_Abort(MPI_COMM_WORLD, mine.code);
    }
    back_off.sleep();
  }
}

/// The ending of the lowest rank that has failed, on every rank.
Ending Runtime::common_ending(const Ending& mine) {
  const auto nobody = static_cast<std::uint64_t>(comm_->size());
  const std::uint64_t first = comm_->reduce_all(mine.code == 0 ? nobody : static_cast<std::uint64_t>(comm_->rank()), Reduction::min);
  if (first == nobody) return {};
  const auto root = static_cast<int>(first);
  const bool everywhere = comm_->reduce_all(mine.code == 0 ? 0 : 1, Reduction::min) == 1;
  Ending ending;
  ending.code = static_cast<int>(comm_->reduce_all(comm_->rank() == root ? static_cast<std::uint64_t>(mine.code) : 0, Reduction::max));
  ending.text = text_from(*comm_, root, mine.text);
  if (!everywhere) ending.text += " (rank " + std::to_string(root) + " on " + comm_->host_of(root) + ")";
  return ending;
}

int Runtime::finish(const Ending& mine) {
  if (uses_mpi_) meet(mine);
  const Ending ending = common_ending(mine);
  if (ending.code == 0) return 0;
  if (comm_->rank() == 0) print_error(ending.text);
  if (uses_mpi_) meet(ending);  // at the first rank that exits so, the launcher may kill the one that speaks
  return ending.code;
}

}  // namespace unshard
