// Steps of a merge that other commands take too: they write what was mapped.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "adapter_output.h"
#include "input.h"
#include "input_watch.h"
#include "move_needs.h"
#include "resume.h"
#include "step_times.h"
#include "unshard/mapping.h"
#include "unshard/merge.h"
#include "unshard/publish.h"

namespace unshard {

/// What is written: where, and the small files about it.
struct Output {
  Plan plan;
  std::vector<SmallFile> indexes;
  std::size_t parameters = 0;  ///< of the model; the plan's targets have those of adapters behind them
};

/// Collective. Throws Error(usage) where a file of the source (which has all of its files by now) is a link into the target.
void check_links(const Session& session, const TargetFolder& target, const Source& source);

/// Collective. Where everything lies in the output; the targets of adapters that are written too are appended to the mapping's. Sets the
/// indexes and the number of parameters of `output`. `config_text`: config.json as it is published.
[[nodiscard]] Layout lay_out(const Session& session, const Source& source, const Catalog& catalog, Mapping& mapping,
                             const std::vector<AdapterOutput>& adapters, const std::string& config_text, const MergeOptions& options,
                             Output& output);

/// Collective. The plan, the same on every rank (compared by its hash). `done`: what need not be written.
[[nodiscard]] Plan agree_on_plan(const Session& session, const Targets& targets, const Layout& layout, const TargetFolder& target,
                                 const MergeOptions& options, const std::vector<Window>& done);

/// Local, pure. Throws Error(usage) naming the least --buffer-size.
void require_enough_buffer(const Session& session, const Targets& targets, const Plan& plan, const MergeOptions& options);

/// Collective. Moves, reads back, and returns what was done. Chunk records leave the catalog: from then on they are only with the owners.
[[nodiscard]] MoveReport move_and_verify(const Session& session, FileCache& files, const Source& source, Catalog& catalog,
                                         const Mapping& mapping, const Plan& plan, const TargetFolder& target, const MergeOptions& options,
                                         Journal* journal, StepTimes& times);

/// Local. Says what opening the partial folder has found. Whether a run before has published all, so that nothing is left to do.
[[nodiscard]] bool is_done_already(const Session& session, const OpenedPartial& partial, const std::string& target_dir);

/// Collective. Publishes adapters alone, unless a signal has come: the last chance to stop.
void publish_adapters(const Session& session, const TargetFolder& target, const Output& output, const MergeOptions& options);

/// Prints the plan; returns it as JSON. `needs`: what moving it needs, where it is moved.
[[nodiscard]] std::string show_plan(const Session& session, const Targets& targets, const Plan& plan, const MergeOptions& options,
                                    const std::optional<MoveNeeds>& needs);

/// Collective. The same of a plan that would be moved.
[[nodiscard]] std::string show_move(const Session& session, const Source& source, const Catalog& catalog, const Targets& targets,
                                    const Plan& plan, const MergeOptions& options);

/// Collective. Writes nothing but adapters into the target folder. `sources`: folders that it must not touch. Returns the JSON result.
[[nodiscard]] std::string write_adapters(const Session& session, const Input& input, InputWatch& watch, FileCache& files, Catalog& catalog,
                                         const std::vector<AdapterOutput>& adapters, const std::vector<std::string>& sources,
                                         const MergeOptions& options);

}  // namespace unshard
