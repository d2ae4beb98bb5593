#include "options.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <functional>
#include <initializer_list>
#include <utility>

#include "arguments.h"
#include "sizes.h"
#include "unshard/error.h"

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

[[noreturn]] void refuse(const std::string& text) {
  throw Error(ErrorCode::usage, "usage: " + text);
}

template <class Names>
bool holds(const Names& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

template <class Names>
std::string listed(const Names& names) {
  std::string text;
  for (const auto& name : names) text += (text.empty() ? "" : ", ") + std::string(name);
  return text;
}

/// `value` must be one of `known` (else usage) and one of `able` (else unsupported).
template <class Known>
void check_choice(const std::string& option, const std::string& value, const Known& known, const std::vector<std::string>& able) {
  if (holds(able, value)) return;
  if (!holds(known, value)) refuse(option + ": '" + printable(value) + "' is none of " + listed(known));
  throw Error(ErrorCode::unsupported, "options: " + option + " " + value + " is not supported by this version; it has " + listed(able));
}

void need_text(const std::string& option, const std::string& value) {
  if (value.empty()) refuse(option + " needs a value");
}

/// What a command can't do without. Not CLI11's own check: that comes before the one for unknown words, and would hide a misspelt name.
void need(std::initializer_list<std::pair<const char*, bool>> options) {
  for (const auto& [name, given] : options) {
    if (!given) refuse(std::string(name) + " is required; see unshard --help");
  }
}

/// An option with one text, which must not be empty.
CLI::Option* add_text(CLI::App& app, const std::string& names, std::string& to, const std::string& help) {
  return app
      .add_option_function<std::string>(
          names,
          [&to, names](const std::string& value) {
            need_text(names, value);
            to = value;
          },
          help)
      ->type_name("TEXT");
}

CLI::Option* add_folder(CLI::App& app, const std::string& names, std::string& to, const std::string& help) {
  return add_text(app, names, to, help)->type_name("DIR");
}

/// An option that may be given several times, each time with one text.
CLI::Option* add_list(CLI::App& app, const std::string& name, std::vector<std::string>& to, const std::string& help) {
  return app.add_option(name, to, help)
      ->expected(1)
      ->allow_extra_args(false)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->type_name("TEXT");
}

CLI::Option* add_size(CLI::App& app, const std::string& name, std::uint64_t& to, const std::string& help) {
  return app
      .add_option_function<std::string>(
          name, [&to, name](const std::string& value) { to = parse_size(value, name); }, help)
      ->type_name("SIZE");
}

/// A whole number of 1 or more. Read as signed: CLI11 would take -1 for a large one.
CLI::Option* add_count(CLI::App& app, const std::string& name, std::function<void(std::uint64_t)> set, const std::string& help) {
  const auto check_and_set = [name, set = std::move(set)](const std::int64_t& value) {
    if (value < 1) refuse(name + " must be 1 or more");
    set(static_cast<std::uint64_t>(value));
  };
  return app.add_option_function<std::int64_t>(name, check_and_set, help)->type_name("N");
}

void add_lines(CLI::App& app, CommandLine& line) {
  app.add_flag("--json", line.json, "print the result as one JSON object on stdout");
  const auto verbosity = [&line](Verbosity value) { return [&line, value](std::int64_t) { line.verbosity = value; }; };
  CLI::Option* verbose = app.add_flag_function("--verbose", verbosity(Verbosity::verbose), "more lines: ranks, steps, timings");
  app.add_flag_function("--quiet", verbosity(Verbosity::quiet), "errors only")->excludes(verbose);
}

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

void set_dtype(DTypeChoice& choice, const std::string& value) {
  if (value == "auto") {
    choice.kind = DTypeChoice::Kind::by_config;
  } else if (value == "keep") {
    choice.kind = DTypeChoice::Kind::keep;
  } else if (value == "bfloat16" || value == "float16" || value == "float32") {
    choice = {DTypeChoice::Kind::fixed, *dtype_from_torch(value)};
  } else {
    refuse("--dtype: '" + printable(value) + "' is none of auto, keep, bfloat16, float16, float32");
  }
}

void add_dtype(CLI::App& app, DTypeChoice& choice) {
  app.add_option_function<std::string>(
         "--dtype", [&choice](const std::string& value) { set_dtype(choice, value); },
         "auto (config.json's), keep (as stored), bfloat16, float16, float32")
      ->type_name("TYPE");
}

void set_lora(LoraChoice& lora, const std::string& value) {
  using What = LoraChoice::What;
  constexpr std::array<std::pair<const char*, What>, 3> choices = {
      {{"extract", What::extract}, {"fold", What::fold}, {"drop", What::drop}}};
  for (const auto& [name, what] : choices) {
    if (value == name) {
      lora.what = what;
      return;
    }
  }
  refuse("--lora: '" + printable(value) + "' is none of extract, fold, drop");
}

void add_lora(CLI::App& app, LoraChoice& lora) {
  app.add_option_function<std::string>(
         "--lora", [&lora](const std::string& value) { set_lora(lora, value); },
         "LoRA tensors in the checkpoint: extract (base weights and an adapter folder; default), fold, drop")
      ->type_name("WHAT");
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

void set_method(MergeLoraOptions& options, const std::string& value) {
  using Method = MergeLoraOptions::Method;
  constexpr std::array<std::pair<const char*, Method>, 3> methods = {
      {{"concat", Method::concat}, {"average", Method::average}, {"weighted", Method::weighted}}};
  for (const auto& [name, method] : methods) {
    if (value == name) {
      options.method = method;
      return;
    }
  }
  refuse("--merge-method: '" + printable(value) + "' is none of concat, average, weighted");
}

/// `0.5,-0.25`: finite numbers.
void add_weights(std::vector<double>& weights, const std::string& text) {
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t comma = std::min(text.find(',', begin), text.size());
    double number = 0;
    const char* first = text.data() + begin;
    const auto [end, error] = std::from_chars(*first == '+' ? first + 1 : first, text.data() + comma, number);
    if (error != std::errc{} || end != text.data() + comma || !std::isfinite(number))
      refuse("--adapter-weights: '" + printable(text.substr(begin, comma - begin)) + "' is no number");
    weights.push_back(number);
    begin = comma + 1;
  }
}

/// How stored names and values become published ones: for merge, and for test straight from the shards.
void add_mapping(CLI::App& app, MapOptions& map, std::string& hf_config) {
  add_text(app, "--model-type", map.model_type, "family of name rules (default: model_type of config.json)");
  add_folder(app, "--hf-config,--hf-model-path", hf_config, "folder with config.json, tokenizer … (default: found beside the checkpoint)");
  add_dtype(app, map.dtype);
  app.add_flag("--tie-word-embedding", map.tie_word_embedding, "the output layer is the embedding (normally config.json says so)");
  app.add_flag("--is-value-model", map.is_value_model, "the head is a value head");
  add_lora(app, map.lora);
  add_list(app, "--allow-missing", map.allow_missing, "glob of names that may be missing; repeatable");
  add_list(app, "--drop", map.drop, "glob of names that are left out; repeatable");
}

/// Files and folders that names and missing tensors come from.
void add_naming(CLI::App& app, std::string& custom_mapping, std::string& like, std::string& fill_missing_from) {
  add_text(app, "--custom-mapping", custom_mapping, "JSON file of name rules that come before the family's")->type_name("FILE");
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

void set_io(IoMode& mode, const std::string& value) {
  constexpr std::array<std::pair<const char*, IoMode>, 3> modes = {
      {{"auto", IoMode::automatic}, {"collective", IoMode::collective}, {"posix", IoMode::posix}}};
  for (const auto& [name, known] : modes) {
    if (value == name) {
      mode = known;
      return;
    }
  }
  refuse("--io: '" + printable(value) + "' is none of auto, collective, posix");
}

void add_hint(std::vector<std::pair<std::string, std::string>>& hints, const std::string& text) {
  const std::size_t equals = text.find('=');
  if (equals == 0 || equals == std::string::npos) refuse("--mpi-info: '" + printable(text) + "' is not KEY=VALUE");
  hints.emplace_back(text.substr(0, equals), text.substr(equals + 1));
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
  app.add_option_function<std::string>(
         "--io", [&merge](const std::string& value) { set_io(merge.io, value); }, "auto, collective or posix writes")
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

void add_merge_lora(CLI::App& root, CommandLine& line, const Abilities& abilities) {
  CLI::App& app = *root.add_subcommand("merge-lora", "fold LoRA adapters into a model folder");
  MergeLoraOptions& options = line.merge_lora;
  MergeOptions& merge = options.merge;
  merge.command = "merge-lora";
  app.callback([&line, &options] {
    const MergeOptions& given = options.merge;
    need({{"--base-model", !given.input.local_dirs.empty()},
          {"--lora-adapter", !given.adapters.empty()},
          {"--target-dir", !given.target_dir.empty()}});
    const bool weighted = options.method == MergeLoraOptions::Method::weighted;
    if (weighted != !options.weights.empty())
      refuse(weighted ? "--merge-method weighted needs --adapter-weights, one number for each adapter"
                      : "--adapter-weights goes with --merge-method weighted only");
    if (weighted && options.weights.size() != given.adapters.size()) {
      refuse("--adapter-weights: " + std::to_string(options.weights.size()) + " weights for " + std::to_string(given.adapters.size()) +
             " adapters; give one number for each");
    }
    line.command = Command::merge_lora;
  });
  app.add_option_function<std::string>(
         "--base-model",
         [&merge](const std::string& value) {
           need_text("--base-model", value);
           merge.input.local_dirs = {value};
         },
         "folder of the base model (required)")
      ->type_name("DIR");
  app.add_option_function<std::vector<std::string>>(
         "--lora-adapter",
         [&merge](const std::vector<std::string>& values) {
           for (const std::string& value : values) {
             need_text("--lora-adapter", value);
             merge.adapters.push_back({value, 1});
           }
         },
         "adapter folder (required); several, repeated or with commas")
      ->expected(1)
      ->allow_extra_args(false)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->delimiter(',')
      ->type_name("DIR");
  add_folder(app, "--target-dir", merge.target_dir, "folder of the model that is written (required)");
  app.add_option_function<std::string>(
         "--merge-method", [&options](const std::string& value) { set_method(options, value); },
         "concat (the sum of all updates; default), average, weighted")
      ->type_name("METHOD");
  app.add_option_function<std::string>(
         "--adapter-weights", [&options](const std::string& value) { add_weights(options.weights, value); },
         "numbers with commas, one for each adapter")
      ->type_name("W,W…");
  app.add_option_function<std::string>(
         "--output",
         [&options](const std::string& value) {
           if (value != "model" && value != "adapter") refuse("--output: '" + printable(value) + "' is none of model, adapter");
           options.writes_adapter = value == "adapter";
         },
         "model (default), or adapter: one adapter that does what all do together")
      ->type_name("WHAT");
  add_dtype(app, merge.map.dtype);
  add_work(app, merge.input);
  add_writing(app, merge, abilities);
  add_lines(app, line);
  add_without_effect(app, line.notes);
}

void check_extract_lora(const ExtractLoraOptions& options) {
  const bool from_checkpoint = !options.merge.input.local_dirs.empty();
  if (from_checkpoint == !options.finetuned.empty()) refuse("extract-lora needs one of --local-dir and --finetuned; see unshard --help");
  need({{"--target-dir", !options.merge.target_dir.empty()}});
  if (from_checkpoint) {
    if (options.rank != 0) refuse("--rank goes with --finetuned: adapters in a checkpoint have the rank that they were trained with");
    return;
  }
  need({{"--base-model", !options.base_model.empty()}, {"--rank", options.rank != 0}});
  if (options.merge.lora_alpha) refuse("--lora-alpha goes with --local-dir: by --finetuned the scale is 1");
}

void add_extract_lora(CLI::App& root, CommandLine& line, const Abilities& abilities) {
  CLI::App& app = *root.add_subcommand("extract-lora", "write the LoRA adapter in a checkpoint, or the difference of two models as one");
  ExtractLoraOptions& options = line.extract_lora;
  options.merge.command = "extract-lora";
  app.callback([&line, &options] {
    check_extract_lora(options);
    line.command = Command::extract_lora;
  });
  add_input(app, options.merge.input, abilities);
  add_folder(app, "--target-dir", options.merge.target_dir, "folder of the adapter that is written (required)");
  add_lora_alpha(app, options.merge.lora_alpha);
  add_text(app, "--base-model", options.base_model, "name of the base model for adapter_config.json; with --finetuned its folder");
  add_folder(app, "--finetuned", options.finetuned, "model folder whose difference from the base becomes the adapter");
  add_count(
      app, "--rank", [&options](std::uint64_t value) { options.rank = value; }, "with --finetuned: the largest rank of a module");
  add_dtype(app, options.merge.map.dtype);
  add_writing(app, options.merge, abilities);
  add_lines(app, line);
  add_without_effect(app, line.notes);
}

void add_merge(CLI::App& root, CommandLine& line, const Abilities& abilities) {
  CLI::App& app = *root.add_subcommand("merge", "turn the shards of a checkpoint into a Hugging Face model folder");
  MergeOptions& merge = line.merge;
  app.callback([&line] {
    need({{"--local-dir", !line.merge.input.local_dirs.empty()}, {"--target-dir", !line.merge.target_dir.empty()}});
    line.command = Command::merge;
  });
  add_input(app, merge.input, abilities);
  add_folder(app, "--target-dir", merge.target_dir, "folder of the model that is written (required)");
  add_mapping(app, merge.map, merge.hf_config);
  add_lora_alpha(app, merge.lora_alpha);
  add_naming(app, merge.custom_mapping_path, merge.like_dir, merge.fill_missing_from);
  add_config_numbers(app, merge.config_overrides);
  CLI::Option* stage = app.add_option("--stage", merge.stage, "staged merge: 1 or 2")->check(CLI::Range(1, 2))->type_name("N");
  add_count(
      app, "--stage-layers", [&merge](std::uint64_t value) { merge.stage_layers = value; }, "layers of stage 1 (default 10)")
      ->needs(stage);
  add_writing(app, merge, abilities);
  add_lines(app, line);
  add_without_effect(app, line.notes);
}

void add_check(CLI::App& root, CommandLine& line, const Abilities& abilities) {
  CLI::App& app = *root.add_subcommand("check", "is the checkpoint complete? reads headers only");
  app.callback([&line] {
    need({{"--local-dir", !line.check.input.local_dirs.empty()}});
    line.command = Command::check;
  });
  add_input(app, line.check.input, abilities);
  app.add_flag("--deep", line.check.deep, "read the data as well: checksums, copies, NaN and infinity");
  add_lines(app, line);
  add_without_effect(app, line.notes);
}

void check_tolerance(const Tolerance& tolerance) {
  for (const auto& [name, value] : {std::pair("--atol", tolerance.atol), std::pair("--rtol", tolerance.rtol)}) {
    if (!std::isfinite(value) || value < 0) refuse(std::string(name) + " must be a number of 0 or more");
  }
}

void add_test(CLI::App& root, CommandLine& line, const Abilities& abilities) {
  CLI::App& app = *root.add_subcommand("test", "compare a model folder, or the shards, with a reference");
  TestOptions& test = line.test;
  app.callback([&line] {
    need({{"--test-hf-dir", !line.test.test_hf_dir.empty()}});
    line.command = Command::test;
    line.test.all_tensors = line.json;
    check_tolerance(line.test.tolerance);
    if (line.test.map.lora.what == LoraChoice::What::fold)
      throw Error(ErrorCode::unsupported, "options: test --lora fold is not supported; merge with it and test the result");
    if (line.test.input.local_dirs.empty() == line.test.merged_dir.empty()) refuse("test needs one of --merged-dir and --local-dir");
    for (const auto& [name, value] : {std::pair("--custom-mapping", &line.test.custom_mapping_path), std::pair("--like", &line.test.like_dir),
                                      std::pair("--fill-missing-from", &line.test.fill_missing_from)}) {
      if (!value->empty() && !line.test.merged_dir.empty()) refuse(std::string(name) + " needs --local-dir: a merged folder is compared as it is");
    }
  });
  add_input(app, test.input, abilities);
  add_folder(app, "--merged-dir", test.merged_dir, "model folder to be tested");
  add_folder(app, "--test-hf-dir", test.test_hf_dir, "model folder that is right (required)");
  app.add_option("--atol", test.tolerance.atol, "absolute tolerance (default 1e-5)")->type_name("X");
  app.add_option("--rtol", test.tolerance.rtol, "relative tolerance (default 1e-5)")->type_name("X");
  app.add_flag("--like-dtype", test.like_dtype, "first cast to the reference's dtype");
  add_folder(app, "--base", test.base_dir, "also say how much changed from this model; exit 8 when nothing did");
  add_mapping(app, test.map, test.hf_config);
  add_naming(app, test.custom_mapping_path, test.like_dir, test.fill_missing_from);
  add_config_numbers(app, test.config_overrides);
  add_lines(app, line);
  add_without_effect(app, line.notes);
}

void add_inspect(CLI::App& root, CommandLine& line) {
  CLI::App& app = *root.add_subcommand("inspect", "list what a file or folder of any format holds");
  CLI::Option* path = add_text(app, "path", line.inspect_path, "file or folder")->type_name("PATH");
  add_folder(app, "--cache-dir", line.inspect_cache_dir, "keep the parsed headers in a file there, for the next command");
  app.add_flag_function(
         "--families", [&line](std::int64_t) { line.command = Command::families; }, "list the model families with name rules")
      ->excludes(path);
  app.callback([&line] {
    if (line.command == Command::families) return;
    line.command = Command::inspect;
    if (line.inspect_path.empty()) refuse("inspect needs a path");
  });
  add_lines(app, line);
}

constexpr std::array commands = {"merge", "extract-lora", "merge-lora", "check", "test", "inspect"};

void check_command(const std::vector<std::string>& arguments) {
  if (arguments.empty()) refuse("a command is missing: " + listed(commands) + "; see unshard --help");
  if (arguments[0].rfind('-', 0) == 0 || holds(commands, arguments[0])) return;
  refuse("'" + printable(arguments[0]) + "' is none of the commands " + listed(commands) + "; see unshard --help");
}

void check_folders(const std::vector<std::string>& folders) {
  for (const std::string& folder : folders) need_text("--local-dir", folder);
}

}  // namespace

CommandLine parse_command_line(std::vector<std::string> arguments, const Abilities& abilities) {
  arguments = with_hyphens(std::move(arguments));
  refuse_what_comes_later(arguments);
  check_command(arguments);
  CommandLine line;
  CLI::App app("Turns the shards of a distributed training job into one Hugging Face model folder.", "unshard");
  app.set_version_flag("--version", "");
  app.require_subcommand(1);
  app.footer("Start it alone, or on the nodes that hold the shards: mpirun -np N unshard …, srun --mpi=pmix unshard …");
  add_merge(app, line, abilities);
  add_extract_lora(app, line, abilities);
  add_merge_lora(app, line, abilities);
  add_check(app, line, abilities);
  add_test(app, line, abilities);
  add_inspect(app, line);
  try {
    std::reverse(arguments.begin(), arguments.end());  // as CLI11 wants them
    app.parse(arguments);
  } catch (const CLI::CallForVersion&) {
    line.command = Command::version;
  } catch (const CLI::CallForHelp&) {
    line.command = Command::help;
    line.help = app.help();
  } catch (const CLI::ParseError& error) {
    refuse(printable(error.what()) + "; see unshard --help");
  }
  for (const InputOptions* input : {&line.merge.input, &line.extract_lora.merge.input, &line.check.input, &line.test.input})
    check_folders(input->local_dirs);
  return line;
}

}  // namespace unshard
