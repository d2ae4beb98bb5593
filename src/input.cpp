#include "input.h"

#include <algorithm>
#include <cctype>
#include <map>

#include "unshard/agree.h"
#include "value_bytes.h"

namespace unshard {
namespace {

constexpr std::uint64_t most_config_bytes = std::uint64_t{64} << 20;

std::string upper_case(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
  return text;
}

/// Collective. The lowest rank whose node has a file at `path`; the communicator's size when none has.
int lowest_rank_with(const Session& session, const std::string& path) {
  const auto here = collectively(session.comm, "config", [&] { return session.files.status(path).has_value(); });
  const int mine = here ? session.comm.rank() : session.comm.size();
  return static_cast<int>(session.comm.reduce_all(static_cast<std::uint64_t>(mine), Reduction::min));
}

std::vector<std::string> config_candidates(const Source& source, const std::string& given) {
  if (given.empty()) return source.config_folders;
  return {base_name(given) == "config.json" ? parent_path(given) : given};
}

/// " in run/global_step_10/actor": where the shards lie, when that is not the folder given.
std::string where_below(const Input& input) {
  std::vector<std::string> folders;
  for (const std::string& folder : input.source.folders)
    if (std::ranges::find(input.tree.roots, folder) == input.tree.roots.end()) folders.push_back(folder);
  return folders.empty() ? "" : " in " + name_list(folders);
}

}  // namespace

Input open_input(const Session& session, const std::string& backend, const std::vector<std::string>& local_dirs) {
  Input input;
  input.tree = list_tree(session.comm, session.files, local_dirs);
  input.source = collectively(session.comm, "discover", [&] { return discover(input.tree, backend); });
  read_index_files(session.comm, session.files, input.tree, input.source);
  const std::size_t count = input.source.files.size();
  session.log.line("Found " + counted(count, upper_case(input.source.format) + " checkpoint file") + where_below(input));
  if (input.source.world_size > 0) session.log.line("World size determined as " + std::to_string(input.source.world_size));
  return input;
}

SharedText read_shared_text(const Session& session, const std::string& path, const std::string& step) {
  const int reader = lowest_rank_with(session, path);
  if (reader == session.comm.size())
    throw Error(ErrorCode::bad_input, step + ": " + printable(path, 4096) + ": is not there; check the path");
  const std::string text = collectively(session.comm, step, [&] {
    return session.comm.rank() == reader ? read_small_file(session.files, path, most_config_bytes) : std::string{};
  });
  return {text_from(session.comm, reader, text), reader};
}

std::optional<ConfigFolder> look_for_config(const Session& session, const Source& source, const std::string& given) {
  for (const std::string& folder : config_candidates(source, given)) {
    const std::string path = join_path(folder, "config.json");
    if (lowest_rank_with(session, path) == session.comm.size()) continue;
    const SharedText shared = read_shared_text(session, path, "config");
    auto config = collectively(session.comm, "config", [&] { return ModelConfig::parse(shared.text, path); });
    return ConfigFolder{folder, shared.reader, std::move(config)};
  }
  return std::nullopt;
}

ConfigFolder find_config(const Session& session, const Source& source, const std::string& given) {
  if (auto found = look_for_config(session, source, given)) return std::move(*found);
  if (!given.empty())
    throw Error(ErrorCode::bad_input,
                "config: --hf-config " + printable(given, 4096) + ": there is no config.json; give the folder that has it");
  throw Error(ErrorCode::bad_input, "config: config.json: not found in " + name_list(config_candidates(source, given), 12) +
                                        "; give the folder that has it with --hf-config DIR");
}

std::string line_of_set_aside(const Source& source) {
  std::map<std::string, std::size_t> tensors;
  std::size_t objects = 0;
  for (const SetAside& aside : source.set_aside) {
    if (aside.dtype) {
      ++tensors[aside.reason];
    } else {
      ++objects;
    }
  }
  std::string text;
  for (const auto& [reason, count] : tensors) text += (text.empty() ? "" : ", ") + counted(count, "tensor") + " (" + reason + ")";
  if (objects > 0) text += (text.empty() ? "" : ", ") + counted(objects, "object");
  return "Left alone: " + text;
}

void require_no_errors(const std::string& step, const std::vector<Finding>& findings) {
  const auto is_error = [](const Finding& finding) { return finding.severity == Severity::error; };
  const auto first = std::find_if(findings.begin(), findings.end(), is_error);
  if (first == findings.end()) return;
  std::string text = step + ": " + printable(first->subject, 4096) + ": " + first->text;
  if (const auto more = std::count_if(first + 1, findings.end(), is_error); more > 0) {
    text += " (and " + std::to_string(more) + " more findings; `unshard check` lists them all)";
  }
  throw Error(first->code, text);
}

}  // namespace unshard
