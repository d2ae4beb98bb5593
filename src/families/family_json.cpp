#include "families/family_json.h"

#include <algorithm>

#include "unshard/error.h"

namespace unshard::family_json {

void refuse(const std::string& label, const std::string& what) {
  throw Error(ErrorCode::bad_input, label + ": " + what);
}

void require_keys(const Json& object, std::initializer_list<std::string_view> known, const std::string& label) {
  if (!object.is_object()) refuse(label, "is no JSON object");
  for (const auto& [key, value] : object.items()) {
    if (std::find(known.begin(), known.end(), key) == known.end()) refuse(label, "has the unknown key '" + printable(key) + "'");
  }
}

std::string text_of(const Json& value, const std::string& label) {
  if (!value.is_string()) refuse(label, "has something else where a text belongs");
  return value.get<std::string>();
}

std::string text_at(const Json& object, const char* key, const std::string& label) {
  return object.contains(key) ? text_of(object.at(key), label + ": " + key) : std::string();
}

bool flag_at(const Json& object, const char* key, const std::string& label) {
  if (!object.contains(key)) return false;
  if (!object.at(key).is_boolean()) refuse(label, std::string(key) + " is neither true nor false");
  return object.at(key).get<bool>();
}

std::vector<std::string> texts_at(const Json& object, const char* key, const std::string& label) {
  std::vector<std::string> texts;
  if (!object.contains(key)) return texts;
  if (!object.at(key).is_array()) refuse(label, std::string(key) + " is no list");
  for (const Json& item : object.at(key)) texts.push_back(text_of(item, label + ": " + key));
  return texts;
}

std::vector<std::pair<std::string, std::string>> pairs_of(const Json& object, const std::string& label) {
  if (!object.is_object()) refuse(label, "is no JSON object");
  std::vector<std::pair<std::string, std::string>> pairs;
  for (const auto& [key, value] : object.items()) pairs.emplace_back(key, text_of(value, label + ": '" + printable(key) + "'"));
  return pairs;
}

}  // namespace unshard::family_json
