// What happens to the words of the command line before they are parsed.
#pragma once

#include <string>
#include <vector>

namespace unshard {

/// Local, pure. `--local_dir=a_b` becomes `--local-dir=a_b`: only the name changes, and nothing after a lone `--`.
[[nodiscard]] std::vector<std::string> with_hyphens(std::vector<std::string> arguments);

/// Local, pure. Throws Error(unsupported) naming the first command or option of `arguments` (with hyphens) that is part of the contract but
/// not of this version.
void refuse_what_comes_later(const std::vector<std::string>& arguments);

}  // namespace unshard
