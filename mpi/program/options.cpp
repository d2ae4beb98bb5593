#include "options.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <utility>

#include "arguments.h"
#include "option_groups.h"
#include "option_kinds.h"
#include "unshard/error.h"

namespace unshard {

namespace {

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

void add_merge_lora(CLI::App& root, CommandLine& line, const Abilities& abilities) {
  CLI::App& app = *root.add_subcommand("merge-lora", "fold LoRA adapters into a model folder");
  using Method = MergeLoraOptions::Method;
  MergeLoraOptions& options = line.merge_lora;
  MergeOptions& merge = options.merge;
  merge.command = "merge-lora";
  app.callback([&line, &options, &app] {
    const MergeOptions& given = options.merge;
    check_writing(app, given, line.notes);
    if (options.writes_adapter) check_writing_adapter(app);
    need("merge-lora", {{"--base-model", !given.input.local_dirs.empty()},
                        {"--lora-adapter", !given.adapters.empty()},
                        {"--target-dir", !given.target_dir.empty()}});
    const bool weighted = options.method == Method::weighted;
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
  add_choice<Method>(app, "--merge-method", options.method,
                     {{"concat", Method::concat}, {"average", Method::average}, {"weighted", Method::weighted}},
                     "concat (the sum of all updates; default), average, weighted")
      ->type_name("METHOD");
  app.add_option_function<std::string>(
         "--adapter-weights", [&options](const std::string& value) { add_weights(options.weights, value); },
         "numbers with commas, one for each adapter")
      ->type_name("W,W…");
  add_choice<bool>(app, "--output", options.writes_adapter, {{"model", false}, {"adapter", true}},
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
  if (from_checkpoint == !options.finetuned.empty())
    refuse("extract-lora needs either --local-dir or --finetuned, not both; see unshard extract-lora --help");
  need("extract-lora", {{"--target-dir", !options.merge.target_dir.empty()}});
  if (from_checkpoint) {
    if (options.rank != 0) refuse("--rank goes with --finetuned: adapters in a checkpoint have the rank that they were trained with");
    return;
  }
  need("extract-lora", {{"--base-model", !options.base_model.empty()}, {"--rank", options.rank != 0}});
  if (options.merge.lora_alpha) refuse("--lora-alpha goes with --local-dir: by --finetuned the scale is 1");
  const MergeOptions& merge = options.merge;
  if (!merge.map.model_type.empty() || !merge.hf_config.empty() || !merge.custom_mapping_path.empty() || !merge.config_overrides.empty())
    refuse("options about names go with --local-dir: the folders of --finetuned and --base-model have published names");
}

void add_extract_lora(CLI::App& root, CommandLine& line, const Abilities& abilities) {
  CLI::App& app = *root.add_subcommand("extract-lora", "write the LoRA adapter in a checkpoint, or the difference of two models as one");
  ExtractLoraOptions& options = line.extract_lora;
  options.merge.command = "extract-lora";
  app.callback([&line, &options, &app] {
    check_extract_lora(options);
    check_writing(app, options.merge, line.notes);
    check_writing_adapter(app);
    line.command = Command::extract_lora;
  });
  add_input(app, options.merge.input, abilities);
  add_folder(app, "--target-dir", options.merge.target_dir, "folder of the adapter that is written (required)");
  add_lora_alpha(app, options.merge.lora_alpha);
  add_names(app, options.merge.map.model_type, options.merge.hf_config);
  add_custom_mapping(app, options.merge.custom_mapping_path);
  add_config_numbers(app, options.merge.config_overrides);
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
  app.callback([&line, &app] {
    check_writing(app, line.merge, line.notes);
    need("merge", {{"--local-dir", !line.merge.input.local_dirs.empty()}, {"--target-dir", !line.merge.target_dir.empty()}});
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
    need("check", {{"--local-dir", !line.check.input.local_dirs.empty()}});
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

/// Options of `test` that say how shards become a model.
constexpr std::array about_shards = {"--backend",        "--hf-config",     "--model-type", "--dtype", "--tie-word-embedding",
                                     "--is-value-model", "--allow-missing", "--drop",       "--lora"};

void add_test(CLI::App& root, CommandLine& line, const Abilities& abilities) {
  CLI::App& app = *root.add_subcommand("test", "compare a model folder, or the shards, with a reference");
  TestOptions& test = line.test;
  app.callback([&line, &app] {
    need("test", {{"--test-hf-dir", !line.test.test_hf_dir.empty()}});
    line.command = Command::test;
    line.test.all_tensors = line.json;
    check_tolerance(line.test.tolerance);
    if (line.test.map.lora.what == LoraChoice::What::fold)
      throw Error(ErrorCode::unsupported, "options: test --lora fold is not supported; merge with it and test the result");
    if (line.test.input.local_dirs.empty() == line.test.merged_dir.empty())
      refuse("test needs either --merged-dir or --local-dir, not both");
    for (const auto& [name, value] :
         {std::pair("--custom-mapping", &line.test.custom_mapping_path), std::pair("--like", &line.test.like_dir),
          std::pair("--fill-missing-from", &line.test.fill_missing_from)}) {
      if (!value->empty() && !line.test.merged_dir.empty())
        refuse(std::string(name) + " needs --local-dir: a merged folder is compared as it is");
    }
    if (!line.test.merged_dir.empty()) note_without_effect(app, about_shards, "a merged folder is compared as it is", line.notes);
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

/// `help` and `help COMMAND`, as other programs have them.
std::vector<std::string> with_help_as_option(std::vector<std::string> arguments) {
  if (arguments.empty() || arguments[0] != "help") return arguments;
  arguments.erase(arguments.begin());
  arguments.emplace_back("--help");
  return arguments;
}

void check_folders(const std::vector<std::string>& folders) {
  for (const std::string& folder : folders) need_text("--local-dir", folder);
}

}  // namespace

CommandLine parse_command_line(std::vector<std::string> arguments, const Abilities& abilities) {
  arguments = with_help_as_option(with_hyphens(std::move(arguments)));
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
  const std::string help = "unshard " + (holds(commands, arguments[0]) ? arguments[0] + " " : "") + "--help";
  try {
    std::reverse(arguments.begin(), arguments.end());  // as CLI11 wants them
    app.parse(arguments);
  } catch (const CLI::CallForVersion&) {
    line.command = Command::version;
  } catch (const CLI::CallForHelp&) {
    line.command = Command::help;
    line.help = app.help();
  } catch (const CLI::ParseError& error) {
    refuse(printable(error.what()) + "; see " + help);
  }
  for (const InputOptions* input : {&line.merge.input, &line.extract_lora.merge.input, &line.check.input, &line.test.input})
    check_folders(input->local_dirs);
  return line;
}

}  // namespace unshard
