// The main job, step by step: discover → catalog → map → plan → move → publish. Each step takes the value of the step before.
#include "unshard/merge.h"

#include <algorithm>
#include <array>
#include <map>

#include "adapter_input.h"
#include "adapter_output.h"
#include "adapter_settings.h"
#include "command_identity.h"
#include "dora.h"
#include "dry_run.h"
#include "input.h"
#include "input_watch.h"
#include "kept_split.h"
#include "merge_steps.h"
#include "model_input.h"
#include "plan_parts.h"
#include "remote_code.h"
#include "report.h"
#include "resume.h"
#include "step_times.h"
#include "steps.h"
#include "unshard/agree.h"
#include "unshard/output_format.h"
#include "unshard/publish.h"
#include "wire.h"

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

/// Collective. What LoRA tensors there are, and what becomes of them: adapters of folders are folded, those inside the checkpoint too, or
/// written beside the base weights (returned).
std::vector<AdapterOutput> settle_adapters(const Session& session, Input& input, Catalog& catalog, const ModelConfig& config,
                                           const MergeOptions& options, MapOptions& map) {
  for (const AdapterFolder& folder : options.adapters)
    map.lora.adapters.push_back(read_adapter(session, folder, limits_of(session, options.input), input.tree, input.source, catalog));
  if (!options.adapters.empty() || map.lora.what == LoraChoice::What::drop) return {};
  map.lora.adapters = adapters_in(session, input.source, catalog, options.lora_alpha);
  collectively(session.comm, "adapter", [&] { leave_out_dropped(catalog.tensors, map.drop, map.lora.adapters); });
  for (const AdapterUse& use : map.lora.adapters) session.log.line(describe(use));
  return collectively(session.comm, "adapter", [&] {
    if (map.lora.what == LoraChoice::What::extract) return adapters_beside(catalog.tensors, config, map, map.lora.adapters, "lora_adapter");
    if (map.lora.adapters.size() > 1) {
      std::vector<std::string> names;
      for (const AdapterUse& use : map.lora.adapters) names.push_back(use.adapter.name);
      throw Error(ErrorCode::bad_input, "--lora fold: the checkpoint holds several adapters (" + name_list(names) +
                                            "); write them by --lora extract, and fold the ones that you want by merge-lora");
    }
    return std::vector<AdapterOutput>{};
  });
}

/// The vocabulary of an adapter that was trained with more (or fewer) tokens than the base has; none when config.json says the same.
std::optional<std::uint64_t> new_vocabulary(const std::vector<TensorRow>& table, const LoraChoice& lora, const ModelConfig& config) {
  constexpr std::array<std::string_view, 7> names{"embed_tokens.weight", "lm_head.weight",         "wte.weight",         "embed_in.weight",
                                                  "embed_out.weight",    "word_embeddings.weight", "output_layer.weight"};
  const auto stated = config.number("vocab_size");
  if (!stated || lora.what != LoraChoice::What::fold) return std::nullopt;
  for (const AdapterUse& use : lora.adapters) {
    for (const Replacement& one : use.adapter.replacements) {
      const Shape& shape = table[one.tensor].shape;
      const bool is_vocabulary = std::any_of(names.begin(), names.end(), [&](std::string_view name) { return one.name.ends_with(name); });
      if (is_vocabulary && shape.size() == 2 && shape[0] != *stated) return shape[0];
    }
  }
  return std::nullopt;
}

/// The line about LoRA that nobody must miss.
void say_what_became_of_lora(const Session& session, const std::vector<AdapterOutput>& written, const MapOptions& map) {
  if (map.lora.adapters.empty()) return;
  if (map.lora.what == LoraChoice::What::fold) {
    session.log.line("LoRA was folded: the weights written are base + scale * B * A");
  } else {
    std::vector<std::string> folders;
    for (const AdapterOutput& adapter : written) folders.push_back(adapter.folder + "/");
    session.log.warning("LoRA was not folded: the weights written are those of the base model without it, and the adapter is in " +
                        name_list(folders) + " (--lora fold folds it in)");
  }
}

}  // namespace

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
  plan_options.step_bytes = step_bytes_for(limits_of(session, options.input).buffer_bytes, options.input.threads);
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

MoveReport move_and_verify(const Session& session, FileCache& files, const Source& source, Catalog& catalog, const Mapping& mapping,
                           const Plan& plan, const TargetFolder& target, const MergeOptions& options, Journal* journal, StepTimes& times) {
  times.enter("move");
  const ChunkTable chunks = send_chunks(session.comm, catalog, mapping.targets, plan);
  catalog.chunks = std::vector<Chunk>();
  MoveOptions move_with = move_options(session, options);
  if (journal != nullptr) move_with.written = [journal](const Extent& extent) { journal->add(extent); };
  move_with.read_back = options.verify && share_page_cache(session.comm, target.blind);
  move_with.home_readers = home_ranks_read(read_facts(session.comm, source, chunks));
  std::uint64_t total_bytes = 0;
  for (const std::uint64_t bytes : bytes_by_rank(plan)) total_bytes += bytes;
  session.log.begin_progress("Merging", total_bytes);
  MoveReport report;
  const auto moved = attempt([&] {
    report = move(session.comm, files, source, catalog, mapping.targets, plan, chunks, session.files, target.partial, move_with);
  });
  collectively(session.comm, "move", [&] {
    if (journal != nullptr) journal->flush();
  });  // after a failure, too: the next run goes on from there
  if (moved) throw Error(*moved);
  session.log.end_progress();
  times.enter("verify");
  if (options.verify && !report.read_back)
    verify(session.comm, session.files, target.partial, plan, report.extents, limits_of(session, options.input), target.blind);
  return report;
}

namespace {

/// Says how much need not be written again, and what of stage 1 must be.
void say_what_is_done(const Session& session, const Resumed& resumed, const Targets& targets, const Layout& layout,
                      const MergeOptions& options) {
  std::uint64_t bytes = 0;
  for (const Window& range : resumed.done) bytes += range.end - range.begin;
  if (bytes > 0) session.log.line("Going on from an earlier run: " + std::to_string(bytes) + " bytes are written already");
  if (options.stage != 2) return;
  PlanOptions stage_1;
  stage_1.stage = 1;
  stage_1.stage_layers = options.stage_layers;
  stage_1.done = resumed.done;
  std::map<std::uint32_t, std::uint64_t> lost;  // bytes by file
  for (const Segment& segment : segments_of(targets, layout, stage_1)) lost[segment.file] += segment.end - segment.begin;
  for (const auto& [file, lost_bytes] : lost)
    session.log.warning(printable(partial_name(layout.files[file]), 4096) + ": " + std::to_string(lost_bytes) +
                        " bytes are not what stage 1 wrote there, or it left no record of them; they are written again");
}

/// The names of all files of the model folder.
std::vector<std::string> model_files(const Output& output, const std::vector<Asset>& assets) {
  std::vector<std::string> names{"config.json"};
  for (const OutputFile& file : output.plan.layout.files) names.push_back(file.name);
  for (const SmallFile& file : output.indexes) names.push_back(file.name);
  for (const Asset& asset : assets) names.push_back(asset.name);
  return names;
}

/// Collective. The files beside config.json, listed by the rank that sees them; the same on every rank.
std::vector<Asset> find_assets(const Session& session, const ConfigFolder& config, const std::vector<AdapterFolder>& adapters) {
  Bytes packed = collectively(session.comm, "assets", [&] {
    WireWriter out;
    if (session.comm.rank() != config.reader) return out.take();
    std::vector<std::string> folders;
    for (const AdapterFolder& adapter : adapters)
      if (session.files.status(adapter.path)) folders.push_back(adapter.path);  // read_adapter names one that is nowhere
    for (const Asset& asset : with_tokenizer_of(session.files, list_assets(session.files, config.path), folders)) {
      out.text(asset.name);
      out.text(asset.path);
    }
    return out.take();
  });
  session.comm.broadcast(packed, config.reader);
  std::vector<Asset> assets;
  for (WireReader in(packed); !in.at_end();) {
    assets.push_back({in.text(), in.text()});  // in this order: an initialiser list is evaluated from the left
  }
  return assets;
}

void publish_model(const Session& session, const TargetFolder& target, const Output& output, const Mapping& mapping,
                   const ConfigFolder& config, const std::vector<Asset>& assets, const MergeOptions& options) {
  session.log.line("Saving Hugging Face format model to " + printable(options.target_dir, 4096));
  collectively(session.comm, "publish", [&] { stop_if_signalled(limits_of(session, options.input)); });  // the last chance
  std::vector<SmallFile> last = output.indexes;
  last.push_back({"config.json", config.config.edited(mapping.edits)});
  publish(session.comm, session.files, target, output.plan, assets, config.reader, last);
}

}  // namespace

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

std::string merge(const Session& session, const MergeOptions& options) {
  const WorkLimits limits = limits_of(session, options.input);
  require_buffers("merge", limits, least_reading_bytes);
  StepTimes times;
  times.enter("discover");
  Input input = open_input(session, options.input.backend, options.input.local_dirs);
  InputWatch watch(session.comm, session.files, input.source);
  ConfigFolder config = find_config(session, input.source, options.hf_config);
  for (const auto& [key, value] : options.config_overrides) config.config.override_number(key, value);
  std::vector<std::string> sources = options.input.local_dirs;
  for (const std::string& folder : {config.path, options.like_dir, options.fill_missing_from}) {
    if (!folder.empty()) sources.push_back(folder);
  }
  for (const AdapterFolder& adapter : options.adapters) sources.push_back(adapter.path);
  times.enter("target");
  const TargetFolder target = check_target_folder(session.comm, session.files, options.target_dir, sources,
                                                  options.overwrite || options.stage == 2, !options.dry_run);
  if (!target.blind.empty())
    session.log.line("note: " + printable(parent_path(target.path), 4096) + " is not seen on " + target.blind_hosts +
                     ": ranks there only read and send");
  times.enter("catalog");
  const std::vector<Asset> assets = find_assets(session, config, options.adapters);
  if (const std::string code = missing_remote_code(session, config); !code.empty()) session.log.line("note: " + code);
  session.log.line("Merging parameters using " + counted(static_cast<std::uint64_t>(options.input.threads), "thread") + " on " +
                   counted(static_cast<std::uint64_t>(session.comm.size()), "rank"));

  FileCache files(session.files, input.source, limits);
  MapOptions map_options = complete_map_options(session, input.source, options.map, options.custom_mapping_path, options.like_dir, limits);
  if (!options.adapters.empty()) map_options.lora.what = LoraChoice::What::fold;
  Catalog catalog = read_model_input(session, "catalog", files, input, config.config, map_options, options.fill_missing_from,
                                     options.input.cache_dir, limits);
  const std::vector<AdapterOutput> adapters = settle_adapters(session, input, catalog, config.config, options, map_options);
  watch.extend();
  times.enter("map");
  const auto vocabulary = new_vocabulary(catalog.tensors, map_options.lora, config.config);
  if (vocabulary) config.config.override_number("vocab_size", *vocabulary);
  Mapping mapping = make_mapping(session, files, catalog, config.config, map_options);
  if (!input.source.set_aside.empty()) session.log.line(line_of_set_aside(input.source));
  for (const std::string& note : mapping.notes) session.log.line(note);
  set_factors(session, files, input.source, catalog, mapping);
  if (vocabulary) {
    mapping.edits.vocab_size = vocabulary;
    session.log.line("The adapter has other embeddings than the base: vocab_size becomes " + std::to_string(*vocabulary));
  }
  say_what_became_of_lora(session, adapters, map_options);
  times.enter("plan");
  Output output;
  const Layout layout = lay_out(session, input.source, catalog, mapping, adapters, config.config.edited(mapping.edits), options, output);
  output.plan = agree_on_plan(session, mapping.targets, layout, target, options, {});
  const Plan& plan = output.plan;
  require_enough_buffer(session, mapping.targets, plan, options);
  if (options.dry_run) return show_move(session, input.source, catalog, mapping.targets, plan, options);

  const std::vector<std::string> names = model_files(output, assets);
  check_places(session.comm, session.files, target, names);
  check_report_path(session, options.report_path, target, names, sources);
  times.enter("target");
  const std::uint64_t stage_layers = options.stage != 0 ? options.stage_layers : 0;
  const JournalKey key{command_identity(session.comm, input.tree, input.source, catalog, mapping.targets, plan.layout, stage_layers),
                       watch.identity(), options.stage};
  const OpenedPartial partial = open_partial(session.comm, session.files, target, plan, {key.command, options.restart, options.stage == 2});
  if (is_done_already(session, partial, options.target_dir)) {
    times.leave();
    return report_merge(session, {options, input.source, catalog, mapping, plan, {}, target, times});
  }
  const Resumed resumed = resume_from_journals(session.comm, session.files, target, plan, partial.found, key, limits);
  say_what_is_done(session, resumed, mapping.targets, plan.layout, options);
  Plan left = agree_on_plan(session, mapping.targets, plan.layout, target, options, resumed.done);
  const auto journal = begin_journal(session.comm, session.files, target, key, resumed.run);
  MoveReport moved = move_and_verify(session, files, input.source, catalog, mapping, left, target, options, journal.get(), times);
  moved.extents.insert(moved.extents.end(), resumed.extents.begin(), resumed.extents.end());
  output.plan.runs = std::move(left.runs);  // who wrote, syncs
  times.enter("publish");
  watch.require_unchanged();
  session.log.line("Successfully merged " + std::to_string(output.parameters) + " parameters");
  if (options.stage == 1) {
    end_stage_1(session.comm, session.files, target, plan);
    session.log.line("Stage 1 is in " + printable(target.partial, 4096) + "; run the same command with --stage 2 to complete it");
  } else {
    publish_model(session, target, output, mapping, config, assets, options);
  }
  times.leave();
  const std::string result = report_merge(session, {options, input.source, catalog, mapping, plan, moved, target, times});
  session.log.line(options.stage == 1 ? "Stage 1 completed successfully" : "Model merging completed successfully");
  return result;
}

}  // namespace unshard
