// Steps that merge.cpp and the commands about adapters have in common: laying out, planning, moving, reading back.
#include "merge_steps.h"

#include <algorithm>

#include "dry_run.h"
#include "file_owners.h"
#include "kept_split.h"
#include "pass_files.h"
#include "steps.h"
#include "unshard/agree.h"
#include "unshard/output_format.h"

namespace unshard {
namespace {

/// Collective. Whether the target lies on NFS, as some rank that writes sees it.
bool is_on_nfs(const Session& session, const TargetFolder& target) {
  const bool here = collectively(session.comm, "plan", [&] {
    if (!target.writes(session.comm.rank())) return false;
    std::string path = target.path;
    while (path != "/" && !session.files.status(path)) path = parent_path(path);
    return session.files.status(path).has_value() && session.files.is_nfs(path);
  });
  return session.comm.reduce_all(here ? 1 : 0, Reduction::max) == 1;
}

}  // namespace

void check_links(const Session& session, const TargetFolder& target, const Source& source) {
  std::vector<std::string> paths;
  const std::vector<int> owners = collectively(session.comm, "target", [&] { return file_owners(session.comm, source); });
  for (const FileId file : files_of(owners, session.comm.rank())) paths.push_back(source.files[file].path);
  for (const ShardFile& index : source.index_files)
    if (lowest_rank_on(session.comm, index.nodes) == session.comm.rank()) paths.push_back(index.path);
  check_no_link_into(session.comm, session.files, target, paths);
}

Layout lay_out(const Session& session, const Source& source, const Catalog& catalog, Mapping& mapping,
               const std::vector<AdapterOutput>& adapters, const std::string& config_text, const MergeOptions& options, Output& output) {
  return collectively(session.comm, "plan", [&] {
    const OutputFormat& format = output_named(options.output_format);
    Layout layout;
    output.parameters = mapping.targets.targets.size();
    if (output.parameters > 0) {
      layout =
          format.lay_out(mapping.targets, {options.max_shard_bytes, config_text,
                                           kept_split(source, catalog, mapping.targets, options.max_shard_bytes), mapping.block_by_target});
      output.indexes = format.indexes(mapping.targets, layout);
    }
    append_adapters(adapters, mapping.targets, layout);
    for (const AdapterOutput& adapter : adapters)
      output.indexes.push_back({join_path(adapter.folder, "adapter_config.json"), adapter.config});
    return layout;
  });
}

Plan agree_on_plan(const Session& session, const Targets& targets, const Layout& layout, const TargetFolder& target,
                   const MergeOptions& options, const std::vector<Window>& done) {
  PlanOptions plan_options;
  plan_options.ranks = options.dry_run && options.dry_run_ranks > 0 ? options.dry_run_ranks : session.comm.size();
  if (plan_options.ranks == session.comm.size() && session.comm.node_count() > 1) {
    for (int rank = 0; rank < session.comm.size(); ++rank)
      plan_options.nodes.push_back(target.writes(rank) ? session.comm.node_of(rank) : no_writer);
    plan_options.one_node_per_file = is_on_nfs(session, target);
  }
  plan_options.step_bytes = step_bytes_for(limits_of(session, options.input).buffer_bytes, options.io, session.comm.node_count());
  // Stage 2 completes the model: it writes what stage 1 has not, by the journals (`done`). Only the dry run has to believe in stage 1.
  plan_options.stage = options.stage == 2 && !options.dry_run ? 0 : options.stage;
  plan_options.stage_layers = options.stage_layers;
  plan_options.done = done;
  Plan plan = collectively(session.comm, "plan", [&] { return make_plan(targets, layout, plan_options); });
  const std::uint64_t hash = plan_hash(plan);
  const std::uint64_t least = session.comm.reduce_all(hash, Reduction::min);
  const std::uint64_t most = session.comm.reduce_all(hash, Reduction::max);
  if (least != most) throw Error(ErrorCode::internal, "plan: the ranks made different plans; are all ranks of the same build?");
  return plan;
}

namespace {

MoveOptions move_options(const Session& session, const MergeOptions& options) {
  MoveOptions move;
  move.io = options.io;
  move.threads = options.input.threads;
  move.open_files = most_open_files();
  move.buffer_bytes = limits_of(session, options.input).buffer_bytes;
  move.mpi_hints = options.mpi_hints;
  move.progress = [&log = session.log](std::uint64_t bytes) { log.add_progress(bytes); };
  move.signal = session.signal;
  return move;
}

}  // namespace

void require_enough_buffer(const Session& session, const Targets& targets, const Plan& plan, const MergeOptions& options) {
  const MoveOptions move = move_options(session, options);
  const std::uint64_t least = std::max(least_buffer_bytes(plan, move), least_computing_bytes(targets));
  if (move.buffer_bytes >= least) return;
  throw Error(ErrorCode::usage, "plan: --buffer-size " + std::to_string(move.buffer_bytes) + ": is too small for this plan; at least " +
                                    std::to_string(least) + " bytes are needed");
}

namespace {

/// Collective. Decides who reads; files that ranks share are passed on here.
bool home_ranks_read(const Session& session, FileCache& files, const Source& source, const ChunkTable& chunks, std::size_t open_files) {
  const Readers readers = readers_for(read_facts(session.comm, source, chunks, open_files));
  if (readers != Readers::sharing) return readers == Readers::homes;
  const auto failure = attempt([&] { pass_files_on(session.comm, files, source); });  // the same on every rank
  if (failure) session.log.line("note: one rank reads each shard and sends to the others: " + std::string(failure->what()));
  return failure.has_value();
}

}  // namespace

MoveReport move_and_verify(const Session& session, FileCache& files, const Source& source, Catalog& catalog, const Mapping& mapping,
                           const Plan& plan, const TargetFolder& target, const MergeOptions& options, Journal* journal, StepTimes& times) {
  times.enter("move");
  const ChunkTable chunks = send_chunks(session.comm, catalog, mapping.targets, plan);
  catalog.chunks = std::vector<Chunk>();
  MoveOptions move_with = move_options(session, options);
  if (journal != nullptr) move_with.written = [journal](const Extent& extent) { journal->add(extent); };
  move_with.read_back = options.verify && share_page_cache(session.comm, target.blind);
  move_with.home_readers = home_ranks_read(session, files, source, chunks, move_with.open_files);
  std::uint64_t total_bytes = 0;
  for (const std::uint64_t bytes : bytes_by_rank(plan)) total_bytes += bytes;
  session.log.begin_progress("Merging", total_bytes);
  MoveReport report;
  const auto moved = attempt([&] {
    report = move(session.comm, files, source, catalog, mapping.targets, plan, chunks, session.files, target.partial, move_with);
  });
  if (moved) {
    // Perhaps on this rank alone: it must not wait for others. The next run goes on from what is in the journal.
    if (journal != nullptr) (void)attempt([&] { journal->flush(); });
    throw Error(*moved);
  }
  collectively(session.comm, "move", [&] {
    if (journal != nullptr) journal->flush();
  });
  session.log.end_progress();
  times.enter("verify");
  if (options.verify && !move_with.read_back)
    verify(session.comm, session.files, target.partial, plan, report.extents, limits_of(session, options.input), target.blind);
  return report;
}

bool is_done_already(const Session& session, const OpenedPartial& partial, const std::string& target_dir) {
  if (partial.is_published) {
    session.log.line("An earlier run had written all of " + printable(target_dir, 4096) + " and was ended before it could say so");
    return true;
  }
  for (const std::string& note : partial.notes) session.log.line(note);
  return false;
}

std::string show_plan(const Session& session, const Targets& targets, const Plan& plan, const MergeOptions& options,
                      const std::optional<MoveNeeds>& needs) {
  const std::uint64_t buffer_bytes = limits_of(session, options.input).buffer_bytes;
  for (const std::string& line : dry_run_lines(targets, plan, buffer_bytes, needs)) session.log.line(line);
  return session.comm.rank() == 0 ? dry_run_json(targets, plan, buffer_bytes, needs) : "";
}

std::string show_move(const Session& session, const Source& source, const Catalog& catalog, const Targets& targets, const Plan& plan,
                      const MergeOptions& options) {
  return show_plan(session, targets, plan, options,
                   move_needs(session.comm, source, catalog, targets, plan, move_options(session, options)));
}

}  // namespace unshard
