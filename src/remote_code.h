// Remote code of a Hugging Face model: the Python files that its configs name under `auto_map`. They are copied like any other file and
// never run; a loader with trust_remote_code needs them (transformers: dynamic_module_utils.py, get_class_from_dynamic_module).
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "input.h"
#include "unshard/merge.h"

namespace unshard {

/// Local, pure. The files that the `auto_map` of a config names, sorted: "modeling_x.Model" is modeling_x.py. One in another repository
/// ("repo--modeling_x.Model") is none of the folder's. Empty for a text that is no JSON object.
[[nodiscard]] std::vector<std::string> remote_code_of(std::string_view text);

/// Collective. One line about the files that a config in the folder names and the folder lacks; "" when there is nothing to say.
[[nodiscard]] std::string missing_remote_code(const Session& session, const ConfigFolder& config);

}  // namespace unshard
