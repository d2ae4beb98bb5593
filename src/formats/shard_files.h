// Files of a checkpoint by name, in one folder or in several that hold its parts.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "unshard/source.h"

namespace unshard {

/// Local, pure. The file at the first of `paths`, the others being its copies. Throws Error(bad_input) when they have different sizes.
[[nodiscard]] ShardFile shard_at(const Tree& tree, const std::vector<std::string>& paths);

/// Local, pure. The file `name` (relative, with slashes) of `folders`; none when it is in none of them.
[[nodiscard]] std::optional<ShardFile> shard_named(const Tree& tree, const std::vector<std::string>& folders, const std::string& name);

/// Local, pure. Why the file can't be read, by what its listing says; "" when nothing speaks against it.
[[nodiscard]] std::string visible_problem(const FileStatus& status);

/// Local. Whether nothing in its listing speaks against the file; else that is one more finding.
[[nodiscard]] bool is_usable(const Tree& tree, const ShardFile& file, std::vector<Finding>& findings);

/// Local, pure. Sorts by rank, then label.
void sort_shards(std::vector<ShardFile>& files);

}  // namespace unshard
