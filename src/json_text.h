// JSON that a person or another program wrote: read with bounds, edited without touching the rest. And what our own has in several places.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "unshard/tensor.h"

namespace unshard {

/// Local. Parses; a byte-order mark is passed over, of duplicate keys the last counts (as in Python). Throws Error(bad_input) starting with
/// `label` for what is no JSON, is nested deeper than 100 levels, or has a number outside a double.
[[nodiscard]] nlohmann::ordered_json parse_json(std::string_view text, const std::string& label);

/// One member of an object in a JSON text. Positions are bytes of the text.
struct JsonMember {
  std::vector<std::string> path;  ///< keys from the top
  std::size_t begin = 0;          ///< of the key's opening quote
  std::size_t value_begin = 0, value_end = 0;
};

/// Local. The members of the object that `text` is and of the objects in it (not of those in arrays), in order. `text` has passed
/// parse_json and is an object.
[[nodiscard]] std::vector<JsonMember> json_members(std::string_view text);

/// Local, pure. `[24, 16]`.
[[nodiscard]] inline nlohmann::ordered_json json_of(const Shape& shape) {
  return std::vector<std::uint64_t>(shape.begin(), shape.end());
}

}  // namespace unshard
