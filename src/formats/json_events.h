// A JSON text read from front to back, without building a tree: for headers and indexes with tens of thousands of entries, and for texts
// that may lie.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>

namespace unshard {

/// One value, in the order of the text. Objects and arrays are announced when they begin; what they hold follows.
struct JsonEvent {
  enum class Kind : std::uint8_t {
    object,
    array,
    text,
    number,  ///< a whole number from 0 to 2^64 - 1; all others are `other`
    other,
  };
  Kind kind = Kind::other;
  std::span<const std::string> path;  ///< keys from the top to this value; valid during the call
  std::size_t arrays = 0;             ///< how many arrays enclose the value; elements have the path of their array
  std::string_view text;              ///< of a text; valid during the call
  std::uint64_t number = 0;
};

/// Local. Calls `handle` for every value. Throws Error(bad_input) `<label>: the <what> …` for what is no JSON, no UTF-8, or nested more
/// than 100 levels deep; what `handle` throws passes through. Keys may come twice: the caller's to refuse.
void read_json(std::string_view text, const std::string& label, std::string_view what, const std::function<void(const JsonEvent&)>& handle);

}  // namespace unshard
