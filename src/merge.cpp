// The main job, step by step: discover → catalog → map → plan → move → publish. Each step takes the value of the step before.
#include "unshard/merge.h"

#include <algorithm>
#include <map>

#include "adapter_input.h"
#include "adapter_output.h"
#include "adapter_settings.h"
#include "command_identity.h"
#include "dora.h"
#include "input.h"
#include "input_watch.h"
#include "merge_steps.h"
#include "model_input.h"
#include "names.h"
#include "plan_parts.h"
#include "remote_code.h"
#include "report.h"
#include "resume.h"
#include "step_times.h"
#include "steps.h"
#include "unshard/agree.h"
#include "unshard/publish.h"
#include "wire.h"

namespace unshard {
namespace {

/// Collective. What LoRA tensors there are, and what becomes of them: adapters of folders are folded, those inside the checkpoint too, or
/// written beside the base weights (returned).
std::vector<AdapterOutput> settle_adapters(const Session& session, Input& input, Catalog& catalog, const ModelConfig& config,
                                           const MergeOptions& options, MapOptions& map) {
  for (const AdapterFolder& folder : options.adapters)
    map.lora.adapters.push_back(read_adapter(session, folder, limits_of(session, options.input), input.tree, input.source, catalog));
  if (!options.adapters.empty() || map.lora.what == LoraChoice::What::drop) return {};
  map.lora.adapters = adapters_in(session, input.source, catalog, options.lora_alpha);
  if (map.lora.adapters.empty() && options.lora_alpha)
    session.log.warning("--lora-alpha has no effect: the checkpoint holds no LoRA tensors");
  if (map.lora.adapters.empty() && map.lora.what == LoraChoice::What::fold)
    session.log.warning("--lora fold has no effect: the checkpoint holds no LoRA tensors");
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
  const auto stated = config.number("vocab_size");
  if (!stated || lora.what != LoraChoice::What::fold) return std::nullopt;
  for (const AdapterUse& use : lora.adapters) {
    for (const Replacement& one : use.adapter.replacements) {
      const Shape& shape = table[one.tensor].shape;
      if (is_of_vocabulary(one.name) && shape.size() == 2 && shape[0] != *stated) return shape[0];
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
      out.number(asset.size_bytes);
      out.number(static_cast<std::uint64_t>(asset.mtime_ns));
    }
    return out.take();
  });
  session.comm.broadcast(packed, config.reader);
  std::vector<Asset> assets;
  for (WireReader in(packed); !in.at_end();) {
    // In this order: an initialiser list is evaluated from the left.
    assets.push_back({in.text(), in.text(), in.number(), static_cast<std::int64_t>(in.number())});
  }
  return assets;
}

/// What makes the folder loadable: indexes and config.json.
std::vector<SmallFile> last_files(const Output& output, const Mapping& mapping, const ConfigFolder& config) {
  std::vector<SmallFile> files = output.indexes;
  files.push_back({"config.json", config.config.edited(mapping.edits)});
  return files;
}

void publish_model(const Session& session, const TargetFolder& target, const Output& output, const Mapping& mapping,
                   const ConfigFolder& config, const std::vector<Asset>& assets, const MergeOptions& options) {
  session.log.line("Saving Hugging Face format model to " + printable(options.target_dir, 4096));
  collectively(session.comm, "publish", [&] { stop_if_signalled(limits_of(session, options.input)); });  // the last chance
  publish(session.comm, session.files, target, output.plan, assets, config.reader, last_files(output, mapping, config));
}

/// Collective. config.json, with the numbers that options give instead of its own.
ConfigFolder config_of(const Session& session, const Source& source, const MergeOptions& options) {
  ConfigFolder config = find_config(session, source, options.hf_config);
  for (const auto& [key, value] : options.config_overrides) config.config.override_number(key, value);
  return config;
}

/// What the target may not touch.
std::vector<std::string> folders_read(const ConfigFolder& config, const MergeOptions& options) {
  std::vector<std::string> folders = options.input.local_dirs;
  for (const std::string& folder : {config.path, options.like_dir, options.fill_missing_from}) {
    if (!folder.empty()) folders.push_back(folder);
  }
  for (const AdapterFolder& adapter : options.adapters) folders.push_back(adapter.path);
  return folders;
}

StepTimes times_from(const std::string& step) {
  StepTimes times;
  times.enter(step);
  return times;
}

/// One merge. Its functions are the steps, in their order, each Collective; what one makes, the next ones use.
class Merge {
 public:
  /// Collective. Discovers the checkpoint and its config.json.
  Merge(const Session& session, const MergeOptions& options)
      : session_(session),
        options_(options),
        limits_(limits_of(session, options.input)),
        times_(times_from("discover")),
        input_(open_input(session, options.input.backend, options.input.local_dirs)),
        watch_(session.comm, session.files, input_.tree, input_.source),
        files_(session.files, input_.source, limits_),
        config_(config_of(session, input_.source, options)),
        sources_(folders_read(config_, options)) {}

  /// Collective. Returns the JSON result.
  std::string run() {
    find_target();
    read_catalog();
    map();
    plan();
    if (options_.dry_run) return show_move(session_, input_.source, catalog_, mapping_.targets, output_.plan, options_);
    if (!open_and_resume()) return report({});
    const MoveReport moved = move();
    publish();
    const std::string result = report(moved);
    session_.log.line(options_.stage == 1 ? "Stage 1 completed successfully" : "Model merging completed successfully");
    return result;
  }

 private:
  void find_target() {
    times_.enter("target");
    target_ = check_target_folder(session_.comm, session_.files, options_.target_dir, sources_, options_.overwrite, !options_.dry_run);
    if (target_.blind.empty()) return;
    session_.log.line("note: " + printable(parent_path(target_.path), 4096) + " is not seen on " + target_.blind_hosts +
                      ": ranks there only read and send");
  }

  void read_catalog() {
    times_.enter("catalog");
    assets_ = find_assets(session_, config_, options_.adapters);
    if (const std::string code = missing_remote_code(session_, config_); !code.empty()) session_.log.line("note: " + code);
    session_.log.line("Merging parameters using " + counted(static_cast<std::uint64_t>(options_.input.threads), "thread") + " on " +
                      counted(static_cast<std::uint64_t>(session_.comm.size()), "rank"));
    map_options_ = complete_map_options(session_, input_.source, options_.map, options_.custom_mapping_path, options_.like_dir, limits_);
    if (!options_.adapters.empty()) map_options_.lora.what = LoraChoice::What::fold;
    catalog_ = read_model_input(session_, "catalog", files_, input_, config_.config, map_options_, options_.fill_missing_from,
                                options_.input.cache_dir, limits_);
    adapters_ = settle_adapters(session_, input_, catalog_, config_.config, options_, map_options_);
    watch_.extend();
    check_links(session_, target_, input_.source);
  }

  void map() {
    times_.enter("map");
    const auto vocabulary = new_vocabulary(catalog_.tensors, map_options_.lora, config_.config);
    if (vocabulary) config_.config.override_number("vocab_size", *vocabulary);
    mapping_ = make_mapping(session_, files_, catalog_, config_.config, map_options_);
    if (!input_.source.set_aside.empty()) session_.log.line(line_of_set_aside(input_.source));
    for (const std::string& note : mapping_.notes) session_.log.line(note);
    set_factors(session_, files_, input_.source, catalog_, mapping_);
    if (vocabulary) {
      mapping_.edits.vocab_size = vocabulary;
      session_.log.line("The adapter has other embeddings than the base: vocab_size becomes " + std::to_string(*vocabulary));
    }
    say_what_became_of_lora(session_, adapters_, map_options_);
  }

  void plan() {
    times_.enter("plan");
    const std::string config_text = config_.config.edited(mapping_.edits);
    const Layout layout = lay_out(session_, input_.source, catalog_, mapping_, adapters_, config_text, options_, output_);
    output_.plan = agree_on_plan(session_, mapping_.targets, layout, target_, options_, {});
    require_enough_buffer(session_, mapping_.targets, output_.plan, options_);
  }

  /// The partial folder, and what an earlier run has left there. Returns false when that is the whole model, published.
  bool open_and_resume() {
    const std::vector<std::string> names = model_files(output_, assets_);
    check_places(session_.comm, session_.files, target_, names);
    check_report_path(session_, options_.report_path, target_, names, sources_);
    times_.enter("target");
    const Layout& layout = output_.plan.layout;
    const std::uint64_t stage_layers = options_.stage != 0 ? options_.stage_layers : 0;
    key_ = {command_identity(session_.comm, input_.tree, input_.source, catalog_, mapping_.targets, layout, stage_layers),
            watch_.identity(), options_.stage};
    const std::string beside = beside_identity(assets_, last_files(output_, mapping_, config_));
    partial_ =
        open_partial(session_.comm, session_.files, target_, output_.plan, {key_.command, options_.restart, options_.stage == 2, beside});
    if (is_done_already(session_, partial_, options_.target_dir)) return false;
    resumed_ = resume_from_journals(session_.comm, session_.files, target_, output_.plan, partial_.found, key_, limits_);
    say_what_is_done(session_, resumed_, mapping_.targets, layout, options_);
    return true;
  }

  /// Writes what is left.
  MoveReport move() {
    Plan left = agree_on_plan(session_, mapping_.targets, output_.plan.layout, target_, options_, resumed_.done);
    const auto journal = begin_journal(session_.comm, session_.files, target_, key_, resumed_.run);
    MoveReport moved = move_and_verify(session_, files_, input_.source, catalog_, mapping_, left, target_, options_, journal.get(), times_);
    moved.extents.insert(moved.extents.end(), resumed_.extents.begin(), resumed_.extents.end());
    output_.plan.runs = std::move(left.runs);  // who wrote, syncs
    output_.plan.done = std::move(left.done);
    return moved;
  }

  void publish() {
    times_.enter("publish");
    watch_.require_unchanged();
    if (options_.stage == 1) {
      end_stage_1(session_.comm, session_.files, target_, output_.plan);
      session_.log.line("Stage 1 is in " + printable(target_.partial, 4096) + "; run the same command with --stage 2 to complete it");
    } else {
      session_.log.line("Successfully merged " + std::to_string(output_.parameters) + " parameters");
      publish_model(session_, target_, output_, mapping_, config_, assets_, options_);
    }
  }

  std::string report(const MoveReport& moved) {
    times_.leave();
    return report_merge(session_, {options_, input_.source, catalog_, mapping_, output_.plan, moved, target_, times_});
  }

  const Session& session_;
  const MergeOptions& options_;
  WorkLimits limits_;
  StepTimes times_;
  Input input_;
  InputWatch watch_;
  FileCache files_;
  ConfigFolder config_;
  std::vector<std::string> sources_;
  TargetFolder target_;
  std::vector<Asset> assets_;
  MapOptions map_options_;
  Catalog catalog_;
  std::vector<AdapterOutput> adapters_;  ///< written beside the base weights
  Mapping mapping_;
  Output output_;
  JournalKey key_;
  OpenedPartial partial_;  ///< its lock is held until the end
  Resumed resumed_;
};

}  // namespace

std::string merge(const Session& session, const MergeOptions& options) {
  require_buffers("merge", limits_of(session, options.input), least_reading_bytes);
  return Merge(session, options).run();
}

}  // namespace unshard
