// The command line as values: specs of every command and option, in one place.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "unshard/log.h"
#include "unshard/merge.h"

namespace unshard {

enum class Command : std::uint8_t { merge, merge_lora, extract_lora, check, test, inspect, families, version, help };

struct CommandLine {
  Command command = Command::help;
  MergeOptions merge;
  MergeLoraOptions merge_lora;
  ExtractLoraOptions extract_lora;
  CheckOptions check;
  TestOptions test;
  std::string inspect_cache_dir, inspect_path;
  std::string help;  ///< the text, for Command::help
  bool json = false;
  Verbosity verbosity = Verbosity::normal;
  std::vector<std::string> notes;  ///< of options that were accepted and do nothing, and of CPUs that are not used
};

/// What this build can do: names of the rows of its tables.
struct Abilities {
  std::vector<std::string> formats;
  std::vector<std::string> outputs;
};

/// Local. `arguments` without the program's name. Names of options may be written with `_` for `-`. Throws Error(usage) for what is wrong
/// and Error(unsupported) for what is not there yet, both in one line.
[[nodiscard]] CommandLine parse_command_line(std::vector<std::string> arguments, const Abilities& abilities);

}  // namespace unshard
