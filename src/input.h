// Where a command reads from: the checkpoint below the folders given, its config.json, and the errors that were found on the way.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "unshard/checkpoint_format.h"
#include "unshard/mapping.h"
#include "unshard/merge.h"
#include "unshard/source.h"

namespace unshard {

/// The checkpoint that a command works on.
struct Input {
  Tree tree;
  Source source;
};

/// Collective. Lists the folders, finds the checkpoint, and says what it is (`Found 8 FSDP checkpoint files`). Throws Error(bad_input) when
/// there is none.
[[nodiscard]] Input open_input(const Session& session, const std::string& backend, const std::vector<std::string>& local_dirs);

/// The folder with config.json, tokenizer and the rest.
struct ConfigFolder {
  std::string path;
  int reader = 0;  ///< the lowest rank that sees it
  ModelConfig config;
};

/// Collective. `given` (--hf-config: a folder, or a config.json), else the first of the source's config folders that has a config.json;
/// none when there is none. Throws Error(bad_input) for one that can't be read.
[[nodiscard]] std::optional<ConfigFolder> look_for_config(const Session& session, const Source& source, const std::string& given);

/// Collective. The same, but none is an Error(bad_input) naming the places that were searched.
[[nodiscard]] ConfigFolder find_config(const Session& session, const Source& source, const std::string& given);

/// Collective. The text of a small file that at least one rank sees, on every rank; the lowest such rank reads it.
struct SharedText {
  std::string text;
  int reader = 0;
};
[[nodiscard]] SharedText read_shared_text(const Session& session, const std::string& path, const std::string& step);

/// Local, pure. How much of the checkpoint is no weight and is left alone: `62 other tensors (optimizer state) and 14 objects …`.
[[nodiscard]] std::string line_of_set_aside(const Source& source);

/// Local, pure. Throws the first error among `findings` (which are the same on every rank), saying how many more there are.
void require_no_errors(const std::string& step, const std::vector<Finding>& findings);

}  // namespace unshard
