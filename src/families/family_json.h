// Pieces of a family's JSON, read with errors that say where. All are Local and throw Error(bad_input) starting with `label`.
#pragma once

#include <initializer_list>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "families/rules.h"

namespace unshard::family_json {

using Json = nlohmann::ordered_json;

[[noreturn]] void refuse(const std::string& label, const std::string& what);
/// That `object` is one and has no other keys.
void require_keys(const Json& object, std::initializer_list<std::string_view> known, const std::string& label);
[[nodiscard]] std::string text_of(const Json& value, const std::string& label);
/// What stands at `key`; "" (false, none) when nothing does.
[[nodiscard]] std::string text_at(const Json& object, const char* key, const std::string& label);
[[nodiscard]] bool flag_at(const Json& object, const char* key, const std::string& label);
[[nodiscard]] std::vector<std::string> texts_at(const Json& object, const char* key, const std::string& label);
/// The pairs of an object of texts, in order.
[[nodiscard]] std::vector<std::pair<std::string, std::string>> pairs_of(const Json& object, const std::string& label);

/// A list of rules.
[[nodiscard]] std::vector<Rule> parse_rules(const Json& json, const std::string& label);

}  // namespace unshard::family_json
