// move: chooses between the two ways of moving, and what both need.
#include "unshard/move.h"

#include <algorithm>
#include <bit>

#include "direct.h"
#include "move_state.h"
#include "rounds.h"
#include "unshard/agree.h"
#include "unshard/error.h"
#include "unshard/publish.h"
#include "wave_output.h"

namespace unshard {
namespace {

constexpr std::uint64_t kibibyte = std::uint64_t{1} << 10;
constexpr std::uint64_t mebibyte = std::uint64_t{1} << 20;

// Of the output: what one thread makes and writes at once stays in its cache (write_out.cpp has the measurement). Rounds have longer
// pieces: each slice of a piece is an entry of the lists that are exchanged.
constexpr std::uint64_t usual_piece_bytes = 256 * kibibyte;
constexpr std::uint64_t usual_round_piece_bytes = mebibyte;
constexpr std::uint64_t most_piece_bytes = 16 * mebibyte;
constexpr std::uint64_t most_scratch_bytes = 512 * kibibyte;
constexpr std::uint64_t least_thread_bytes = 256 * kibibyte;
constexpr std::uint64_t least_step_bytes = 64 * kibibyte;
constexpr std::uint64_t most_step_bytes = 8 * mebibyte;
// A collective write of a longer step is one long call, whose bytes have left the cache when the kernel copies them (measured on one node
// with every component of Open MPI: bench/README.md). Ranks of several nodes write to a server, for which long calls are better.
constexpr std::uint64_t most_local_collective_step_bytes = mebibyte;
// Of what is computed: with its factors it stays in the cache of a core between reading, adding and casting.
constexpr std::uint64_t usual_block_bytes = mebibyte;
// Where something is computed, this part of the budget is for it.
constexpr std::uint64_t work_share = 4;
// A step's share of the budget: two are made, one is received, two are sent, the rest is for the threads (rounds_budget).
constexpr std::uint64_t steps_in_budget = 8;

}  // namespace

bool needs_rounds(const Plan& plan, const RankPlaces& places, const MoveOptions& options) {
  return (options.home_readers && places.size() > 1) || writes_some_collectively(plan, places, options.io);
}

bool writes_some_collectively(const Plan& plan, const RankPlaces& places, IoMode io) {
  return std::any_of(plan.groups.begin(), plan.groups.end(), [&](const Group& group) { return writes_collectively(group, places, io); });
}

bool share_page_cache(const Comm& comm, const std::vector<int>& blind) {
  std::optional<int> node;
  for (int rank = 0; rank < comm.size(); ++rank) {
    if (std::binary_search(blind.begin(), blind.end(), rank)) continue;
    if (node && *node != comm.node_of(rank)) return false;
    node = comm.node_of(rank);
  }
  return true;
}

std::uint64_t shorter_step(const Plan& plan, const StepLimit& limit, std::uint64_t buffer_bytes) {
  constexpr std::uint64_t shortest = 64;
  if (plan.step_bytes <= shortest || limit.bytes == 0) {
    throw Error(ErrorCode::usage,
                "--buffer-size " + std::to_string(buffer_bytes) + ": is too small for " + std::to_string(plan.ranks) + " ranks; at least " +
                    std::to_string(buffer_bytes / std::max<std::uint64_t>(limit.bytes, 1) * limit.needed) + " bytes are needed");
  }
  const auto scaled = static_cast<std::uint64_t>(static_cast<double>(plan.step_bytes) * static_cast<double>(limit.bytes) /
                                                 static_cast<double>(limit.needed));
  return std::max(shortest, std::min(plan.step_bytes / 2, std::bit_floor(scaled)));
}

std::uint64_t step_bytes_for(std::uint64_t buffer_bytes, IoMode io, int nodes) {
  const std::uint64_t most = io == IoMode::collective && nodes == 1 ? most_local_collective_step_bytes : most_step_bytes;
  return std::clamp(std::bit_floor(buffer_bytes / steps_in_budget), least_step_bytes, most);
}

std::uint64_t least_buffer_bytes(const Plan& plan, const MoveOptions&) {
  return std::max(plan.step_bytes, least_step_bytes) * steps_in_budget;
}

WorkNeeds work_needs(const Targets& targets) {
  WorkNeeds needs;
  for (const Target& target : targets.targets) {
    if (!target.computation) continue;
    needs.tile_bytes = std::max(needs.tile_bytes, tile_bytes(*target.computation));
    needs.least_bytes = std::max(needs.least_bytes, least_work_bytes(target));
  }
  return needs;
}

std::uint64_t least_computing_bytes(const Targets& targets, bool home_readers) {
  const WorkNeeds needs = work_needs(targets);
  return needs.least_bytes == 0 ? 0 : work_share * (needs.tile_bytes + (home_readers ? 2 : 1) * needs.least_bytes);
}

Budget direct_budget(std::uint64_t buffer_bytes, int threads, const WorkNeeds& work) {
  Budget budget;
  const std::uint64_t for_work = work.least_bytes == 0 ? 0 : buffer_bytes / work_share;
  std::uint64_t most_threads = (buffer_bytes - for_work) / least_thread_bytes;
  if (for_work > 0) most_threads = std::min(most_threads, for_work / (work.tile_bytes + work.least_bytes));
  budget.threads = static_cast<std::size_t>(std::clamp<std::uint64_t>(most_threads, 1, static_cast<std::uint64_t>(std::max(threads, 1))));
  const std::uint64_t each = (buffer_bytes - for_work) / budget.threads;
  budget.scratch_bytes = std::min(most_scratch_bytes, each / 4);
  const std::uint64_t largest = std::min(most_piece_bytes, (each - budget.scratch_bytes) / 2);
  const std::uint64_t work_each = for_work / budget.threads;
  budget.piece = {std::min(usual_piece_bytes, std::bit_floor(largest)), largest, budget.scratch_bytes,
                  work_each > work.tile_bytes ? work_each - work.tile_bytes : 0, std::min(usual_block_bytes, largest / 4)};
  return budget;
}

Budget rounds_budget(std::uint64_t buffer_bytes, int threads, std::uint64_t step_bytes, const WorkNeeds& work) {
  Budget budget;
  const std::uint64_t for_work = work.least_bytes == 0 ? 0 : buffer_bytes / work_share;
  buffer_bytes -= for_work;
  budget.scratch_bytes = std::clamp<std::uint64_t>(step_bytes / 4, 64, most_scratch_bytes);
  const std::uint64_t fixed = 3 * step_bytes + budget.scratch_bytes;  // the last for the thread that settles
  const std::uint64_t left = buffer_bytes > fixed ? buffer_bytes - fixed : 0;
  const std::uint64_t each = budget.scratch_bytes + step_bytes;
  std::uint64_t most_threads = left / 2 / each;
  if (for_work > 0) most_threads = std::min(most_threads, for_work / 2 / std::max<std::uint64_t>(work.tile_bytes, 1));
  budget.threads = static_cast<std::size_t>(std::clamp<std::uint64_t>(most_threads, 1, static_cast<std::uint64_t>(std::max(threads, 1))));
  budget.send_bytes = left > budget.threads * each ? std::min((left - budget.threads * each) / 2, most_bytes_per_call) : 0;
  const std::uint64_t tiles = budget.threads * work.tile_bytes;
  budget.work_bytes = for_work > tiles ? for_work - tiles : 0;
  budget.piece = {std::min(usual_round_piece_bytes, std::bit_floor(step_bytes)), step_bytes, budget.scratch_bytes, budget.work_bytes};
  return budget;
}

std::string MoveState::path_of(std::uint32_t file) const {
  return join_path(folder, partial_name(plan.layout.files[file]));
}

void MoveState::keep(std::optional<Error> other) {
  if (other && !error) error = std::move(other);
}

void MoveState::report_progress() {
  const std::uint64_t bytes = comm.reduce_all(counters.not_reported_bytes.exchange(0), Reduction::sum);
  if (bytes > 0 && options.progress) options.progress(bytes);
}

Common compare_standing(MoveState& state, Standing mine) {
  constexpr std::uint64_t done = 0, working = 1, signalled = 2, failed = 1000;
  const int number = state.options.signal ? state.options.signal() : 0;
  const std::uint64_t standing = mine == Standing::failed ? failed
                                 : number > 0             ? signalled + static_cast<std::uint64_t>(number)
                                 : mine == Standing::done ? done
                                                          : working;
  const std::uint64_t worst = state.comm.reduce_all(standing, Reduction::max);
  state.report_progress();
  const bool by_signal = worst > signalled && worst < failed;
  return {worst == done, worst > working, by_signal ? static_cast<int>(worst - signalled) : 0};
}

void agree_on_end(MoveState& state, int signal) {
  state.settler.forget();  // closing may take long (NFS writes back then); once they agree, ranks don't wait long for one another
  agree(state.comm, "move", state.error);
  if (signal == 0) return;
  const Error stop = stopped_by(signal);
  throw Error(stop.code(), std::string("move: ") + stop.what());
}

MoveReport move(Comm& comm, FileCache& sources, const Source& source, const Catalog& catalog, const Targets& targets, const Plan& plan,
                const ChunkTable& chunks, FileSystem& target_files, const std::string& folder, const MoveOptions& options) {
  const Assembler assembler(catalog.tensors, targets, plan, chunks);
  const RankPlaces places(comm);
  MoveState state{.comm = comm,
                  .sources = sources,
                  .source = source,
                  .plan = plan,
                  .assembler = assembler,
                  .target_files = target_files,
                  .folder = folder,
                  .options = options,
                  .work = work_needs(targets),
                  .book = ExtentBook(plan, comm.rank()),
                  .settler = Settler(options.read_back, options.trail_bytes),
                  .counters = {},
                  .error = {}};
  if (needs_rounds(plan, places, options))
    move_in_rounds(state);
  else
    move_directly(state);
  state.report_progress();
  MoveReport report;
  report.extents = collectively(comm, "move", [&] { return state.book.finished(); });
  report.read_bytes = state.counters.read_bytes;
  report.messages = state.counters.messages;
  report.exchanged_bytes = state.counters.exchanged_bytes;
  report.written_bytes = state.counters.written_bytes;
  report.read_ns = state.counters.read_ns;
  report.exchange_ns = state.counters.exchange_ns;
  report.write_ns = state.counters.write_ns;
  report.busy_ns = state.busy_ns;
  return report;
}

}  // namespace unshard
