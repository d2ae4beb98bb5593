#include "option_groups.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "option_kinds.h"

namespace unshard {

namespace {

/// Formats of the contract, in the order of its table; a build knows some of them.
constexpr std::array known_backends = {"auto", "fsdp", "megatron", "dcp", "deepspeed", "accelerate", "hf"};
constexpr std::array known_outputs = {"safetensors", "hdf5"};
constexpr std::array accepted_without_effect = {"--trust-remote-code", "--use-cpu-initialization", "--private"};
constexpr std::array config_numbers = {"--num-attention-heads", "--num-key-value-heads", "--hidden-size", "--head-dim",
                                       "--num-hidden-layers",   "--intermediate-size",   "--vocab-size"};
constexpr int most_threads = 256;
constexpr int most_ranks = 1'000'000;

void add_backend(CLI::App& app, std::string& backend, const Abilities& abilities) {
  std::vector<std::string> able = abilities.formats;
  able.insert(able.begin(), "auto");
  app.add_option_function<std::string>(
         "--backend",
         [&backend, able](const std::string& value) {
           check_choice("--backend", value, known_backends, able);
           backend = value;
         },
         "format of the checkpoint: " + listed(able) + " (default auto: by its content)")
      ->type_name("FORMAT");
}

void add_lora(CLI::App& app, LoraChoice& lora) {
  using What = LoraChoice::What;
  add_choice<What>(app, "--lora", lora.what, {{"extract", What::extract}, {"fold", What::fold}, {"drop", What::drop}},
                   "LoRA tensors in the checkpoint: extract (base weights and an adapter folder; default), fold, drop")
      ->type_name("WHAT");
}

/// Hints whose values MPI libraries do not check: ROMIO divides by cb_buffer_size, ompio takes its negative numbers for sizes.
/// (MPI 4.1, 14.2.8; ROMIO's users guide.)
constexpr std::array<std::string_view, 6> positive_hints = {"cb_block_size",   "cb_buffer_size", "cb_nodes",
                                                            "striping_factor", "striping_unit",  "ind_wr_buffer_size"};

void add_hint(std::vector<std::pair<std::string, std::string>>& hints, const std::string& text) {
  const std::size_t equals = text.find('=');
  if (equals == 0 || equals == std::string::npos || equals + 1 == text.size())
    refuse("--mpi-info: '" + printable(text) + "' is not KEY=VALUE");
  const std::string key = text.substr(0, equals), value = text.substr(equals + 1);
  const bool is_number = std::ranges::find(positive_hints, key) != positive_hints.end();
  if (is_number && (value.size() > 12 || value.find_first_not_of("0123456789") != std::string::npos ||
                    value.find_first_not_of('0') == std::string::npos))
    refuse("--mpi-info " + printable(key) + ": '" + printable(value) + "' is no whole number above zero");
  hints.emplace_back(key, value);
}

}  // namespace

void add_lines(CLI::App& app, CommandLine& line) {
  app.add_flag("--json", line.json, "print the result as one JSON object on stdout");
  const auto verbosity = [&line](Verbosity value) { return [&line, value](std::int64_t) { line.verbosity = value; }; };
  CLI::Option* verbose = app.add_flag_function("--verbose", verbosity(Verbosity::verbose), "more lines: ranks, steps, timings");
  app.add_flag_function("--quiet", verbosity(Verbosity::quiet), "errors only")->excludes(verbose);
}

void add_work(CLI::App& app, InputOptions& input) {
  app.add_option("--num-threads", input.threads, "I/O threads of each rank (default 4)")
      ->check(CLI::Range(1, most_threads))
      ->type_name("N");
  add_size(app, "--buffer-size", input.buffer_bytes,
           "bound of all buffers of a rank together (default 256MiB; at least 512KiB, for test 2MiB)");
  add_folder(app, "--cache-dir", input.cache_dir, "keep the parsed headers in a file there, for the next command");
  app.add_flag("--low-cpu-mem-usage", input.low_cpu_mem_usage, "small windows, one in flight: at most 64 MiB of buffers per rank");
}

void add_input(CLI::App& app, InputOptions& input, const Abilities& abilities) {
  add_backend(app, input.backend, abilities);
  add_work(app, input);
  add_list(app, "--local-dir", input.local_dirs, "folder of the checkpoint; several, repeated or with commas, for parts on several disks")
      ->delimiter(',')
      ->type_name("DIR");
}

void add_dtype(CLI::App& app, DTypeChoice& choice) {
  using Kind = DTypeChoice::Kind;
  const Choices<DTypeChoice> choices = {{"auto", {Kind::by_config}},
                                        {"keep", {Kind::keep}},
                                        {"bfloat16", {Kind::fixed, DType::bf16}},
                                        {"float16", {Kind::fixed, DType::f16}},
                                        {"float32", {Kind::fixed, DType::f32}}};
  add_choice(app, "--dtype", choice, choices, "auto (config.json's), keep (as stored), bfloat16, float16, float32")->type_name("TYPE");
}

void add_lora_alpha(CLI::App& app, std::optional<double>& alpha) {
  app.add_option_function<double>(
         "--lora-alpha",
         [&alpha](const double& value) {
           if (!std::isfinite(value) || value == 0) refuse("--lora-alpha must be a number other than 0");
           alpha = value;
         },
         "alpha of the LoRA adapters, where the checkpoint does not say it")
      ->type_name("N");
}

void add_names(CLI::App& app, std::string& model_type, std::string& hf_config) {
  add_text(app, "--model-type", model_type, "family of name rules (default: model_type of config.json)");
  add_folder(app, "--hf-config,--hf-model-path", hf_config, "folder with config.json, tokenizer … (default: found beside the checkpoint)");
}

void add_custom_mapping(CLI::App& app, std::string& custom_mapping) {
  add_text(app, "--custom-mapping", custom_mapping, "JSON file of name rules that come before the family's")->type_name("FILE");
}

void add_mapping(CLI::App& app, MapOptions& map, std::string& hf_config) {
  add_names(app, map.model_type, hf_config);
  add_dtype(app, map.dtype);
  app.add_flag("--tie-word-embedding", map.tie_word_embedding, "the output layer is the embedding (normally config.json says so)");
  app.add_flag("--is-value-model", map.is_value_model, "the head is a value head");
  add_lora(app, map.lora);
  add_list(app, "--allow-missing", map.allow_missing, "glob of names that may be missing; repeatable");
  add_list(app, "--drop", map.drop, "glob of names that are left out; repeatable");
}

void add_naming(CLI::App& app, std::string& custom_mapping, std::string& like, std::string& fill_missing_from) {
  add_custom_mapping(app, custom_mapping);
  add_folder(app, "--like", like, "follow names, dtypes and expert layout of this model folder");
  add_folder(app, "--fill-missing-from", fill_missing_from, "tensors that the checkpoint lacks come from this model folder");
}

void add_without_effect(CLI::App& app, std::vector<std::string>& notes) {
  for (const std::string name : accepted_without_effect) {
    app.add_flag_function(
           name, [&notes, name](std::int64_t) { notes.push_back(name + " has no effect here"); }, "accepted, no effect")
        ->group("");
  }
}

void add_config_numbers(CLI::App& app, std::vector<std::pair<std::string, std::uint64_t>>& overrides) {
  for (const std::string name : config_numbers) {
    std::string key = name.substr(2);
    std::replace(key.begin(), key.end(), '-', '_');
    add_count(
        app, name, [&overrides, key](std::uint64_t value) { overrides.emplace_back(key, value); }, "instead of config.json's " + key);
  }
}

void add_writing(CLI::App& app, MergeOptions& merge, const Abilities& abilities) {
  add_size(app, "--max-shard-size", merge.max_shard_bytes, "largest file of weights (default 50GB)");
  app.add_option_function<std::string>(
         "--output-format",
         [&merge, &abilities](const std::string& value) {
           check_choice("--output-format", value, known_outputs, abilities.outputs);
           merge.output_format = value;
         },
         listed(abilities.outputs))
      ->type_name("FORMAT");
  add_choice<IoMode>(app, "--io", merge.io, {{"auto", IoMode::automatic}, {"collective", IoMode::collective}, {"posix", IoMode::posix}},
                     "auto, collective or posix writes")
      ->type_name("HOW");
  app.add_option_function<std::vector<std::string>>(
         "--mpi-info",
         [&merge](const std::vector<std::string>& values) {
           for (const std::string& value : values) add_hint(merge.mpi_hints, value);
         },
         "KEY=VALUE, a hint for MPI-IO; repeatable")
      ->expected(1)
      ->allow_extra_args(false)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->type_name("K=V");
  CLI::Option* dry_run = app.add_flag("--dry-run", merge.dry_run, "print the plan and move no bytes");
  app.add_option("--ranks", merge.dry_run_ranks, "with --dry-run: plan for so many ranks")
      ->check(CLI::Range(1, most_ranks))
      ->needs(dry_run)
      ->type_name("N");
  app.add_flag("--overwrite", merge.overwrite, "replace a model in the target folder");
  app.add_flag("--restart", merge.restart, "start anew although an earlier run could be continued");
  app.add_flag_function(
      "--no-verify", [&merge](std::int64_t) { merge.verify = false; }, "don't read back and compare checksums");
  add_text(app, "--report", merge.report_path, "JSON report of every source and output tensor")->type_name("FILE");
}

void note_without_effect(const CLI::App& app, std::span<const char* const> options, const std::string& why,
                         std::vector<std::string>& notes) {
  for (const char* option : options) {
    if (app.count(option) > 0) notes.push_back(std::string(option) + " has no effect here: " + why);
  }
}

void check_writing(const CLI::App& app, const MergeOptions& merge, std::vector<std::string>& notes) {
  if (merge.dry_run) note_without_effect(app, std::array{"--report"}, "with --dry-run nothing is written; --json prints the plan", notes);
  if (merge.output_format == "hdf5" && app.count("--max-shard-size") > 0)
    refuse("--max-shard-size goes with --output-format safetensors: an HDF5 file holds all parameters");
}

void check_writing_adapter(const CLI::App& app) {
  for (const char* option : {"--output-format", "--max-shard-size"}) {
    if (app.count(option) == 0) continue;
    throw Error(ErrorCode::unsupported,
                std::string("options: ") + option + " is not supported for an adapter: PEFT reads one adapter_model.safetensors");
  }
}

}  // namespace unshard
