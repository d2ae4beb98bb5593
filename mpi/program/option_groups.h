// Groups of options that several commands share.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "options.h"

namespace unshard {

void add_lines(CLI::App& app, CommandLine& line);
void add_work(CLI::App& app, InputOptions& input);
void add_input(CLI::App& app, InputOptions& input, const Abilities& abilities);
void add_dtype(CLI::App& app, DTypeChoice& choice);
void add_lora_alpha(CLI::App& app, std::optional<double>& alpha);

/// What says how stored names become published ones.
void add_names(CLI::App& app, std::string& model_type, std::string& hf_config);
void add_custom_mapping(CLI::App& app, std::string& custom_mapping);

/// How stored names and values become published ones: for merge, and for test straight from the shards.
void add_mapping(CLI::App& app, MapOptions& map, std::string& hf_config);

/// Files and folders that names and missing tensors come from.
void add_naming(CLI::App& app, std::string& custom_mapping, std::string& like, std::string& fill_missing_from);

void add_without_effect(CLI::App& app, std::vector<std::string>& notes);
void add_config_numbers(CLI::App& app, std::vector<std::pair<std::string, std::uint64_t>>& overrides);
void add_writing(CLI::App& app, MergeOptions& merge, const Abilities& abilities);
/// After parsing. Refuses what of these options contradicts each other; notes what has no effect.
void check_writing(const CLI::App& app, const MergeOptions& merge, std::vector<std::string>& notes);
/// The same where the output is an adapter, which is one file of safetensors.
void check_writing_adapter(const CLI::App& app);
/// After parsing. Adds a note for each of `options` that was given.
void note_without_effect(const CLI::App& app, std::span<const char* const> options, const std::string& why,
                         std::vector<std::string>& notes);

}  // namespace unshard
