// config.json of a Hugging Face folder: looked up like transformers does it (top level, then the configuration of the language model),
// written back by replacing single values in the text, so that key order, unknown keys and the spelling of numbers (1e-05, 1000000.0) stay.
#include <algorithm>
#include <array>
#include <map>
#include <utility>

#include "json_text.h"
#include "unshard/error.h"
#include "unshard/mapping.h"

namespace unshard {

using Json = nlohmann::ordered_json;

struct ModelConfig::Data {
  std::string path;
  std::string text;
  Json root = Json::object();
  std::map<std::string, std::uint64_t, std::less<>> overrides;

  /// The value of `key` (with dots: a path from the top); none when absent or null.
  [[nodiscard]] const Json* find(std::string_view key) const;
};

namespace {

constexpr std::string_view byte_order_mark = "\xEF\xBB\xBF";
constexpr std::array<std::string_view, 4> sub_configs{"text_config", "language_config", "llm_config", "thinker_config"};

const Json* member(const Json& object, std::string_view key) {
  if (!object.is_object()) return nullptr;
  const auto found = object.find(std::string(key));
  return found == object.end() || found->is_null() ? nullptr : &*found;
}

/// A value for a message, short.
std::string shown(const Json& value) {
  return printable(value.dump(-1, ' ', false, Json::error_handler_t::replace), 60);
}

/// A change of the text: [begin, end) becomes `with`.
struct Change {
  std::size_t begin = 0, end = 0;
  std::string with;
};

std::string apply(std::string text, std::vector<Change> changes) {
  std::sort(changes.begin(), changes.end(), [](const Change& a, const Change& b) { return a.begin > b.begin; });
  for (const Change& change : changes) text.replace(change.begin, change.end - change.begin, change.with);
  return text;
}

bool is_sub_config(std::string_view key) {
  constexpr std::string_view suffix = "_config";
  return key.size() > suffix.size() && key.substr(key.size() - suffix.size()) == suffix && key != "quantization_config" &&
         key != "generation_config";
}

/// Whether the member belongs to a model's configuration: at the top, or in sub-configurations only.
bool in_configs(const JsonMember& member) {
  return std::all_of(member.path.begin(), member.path.end() - 1, [](const std::string& key) { return is_sub_config(key); });
}

/// Edits one text.
class Editor {
 public:
  explicit Editor(const std::string& text) : text_(text), members_(json_members(text)) {}

  /// Sets `key` wherever a configuration has it (`only` may refuse a member); true when there was one.
  template <class Only>
  bool set_present(std::string_view key, const std::string& value, Only only) {
    bool found = false;
    for (const JsonMember& one : members_) {
      if (one.path.back() != key || !in_configs(one)) continue;
      if (!only(one, std::string_view(text_).substr(one.value_begin, one.value_end - one.value_begin))) continue;
      changes_.push_back({one.value_begin, one.value_end, value});
      found = true;
    }
    return found;
  }

  void add(std::string_view key, const std::string& value) { added_.emplace_back(key, value); }

  /// Replaces names in the top level's list of classes.
  void rename_architectures(const std::vector<std::pair<std::string, std::string>>& names) {
    for (const JsonMember& one : members_) {
      if (one.path.size() != 1 || one.path.back() != "architectures") continue;
      for (const auto& [from, to] : names) {
        const std::size_t at = text_.find('"' + from + '"', one.value_begin);
        if (at < one.value_end) changes_.push_back({at + 1, at + 1 + from.size(), to});
      }
    }
  }

  std::string result() {
    std::string text = apply(text_, std::move(changes_));
    for (const auto& [key, value] : added_) text = with_member(text, key, value);
    return text;
  }

 private:
  /// Behind the last member of the top level, indented like it.
  static std::string with_member(const std::string& text, const std::string& key, const std::string& value) {
    const std::vector<JsonMember> members = json_members(text);
    const auto last = std::find_if(members.rbegin(), members.rend(), [](const JsonMember& one) { return one.path.size() == 1; });
    const std::string added = "\"" + key + "\": " + value;
    if (last == members.rend()) return apply(text, {{text.find('{') + 1, text.find('{') + 1, added}});
    std::size_t line = last->begin;
    while (line > 0 && std::string_view(" \n\r\t").find(text[line - 1]) != std::string_view::npos) --line;
    return apply(text, {{last->value_end, last->value_end, "," + text.substr(line, last->begin - line) + added}});
  }

  const std::string& text_;
  std::vector<JsonMember> members_;
  std::vector<Change> changes_;
  std::vector<std::pair<std::string, std::string>> added_;
};

/// The text without `member`: from the comma before it to its end, or for a first member up to the next one.
std::string without(const std::string& text, const JsonMember& member) {
  constexpr std::string_view space = " \n\r\t";
  const std::size_t before = text.find_last_not_of(space, member.begin - 1);
  if (text[before] == ',') return apply(text, {{before, member.value_end, ""}});
  const std::size_t after = text.find_first_not_of(space, member.value_end);
  const std::size_t end = text[after] == ',' ? text.find_first_not_of(space, after + 1) : member.value_end;
  return apply(text, {{member.begin, end, ""}});
}

/// The text without any configuration's `key`.
std::string without_all(std::string text, std::string_view key) {
  while (true) {
    const std::vector<JsonMember> members = json_members(text);
    const auto found =
        std::find_if(members.begin(), members.end(), [&](const JsonMember& one) { return one.path.back() == key && in_configs(one); });
    if (found == members.end()) return text;
    text = without(text, *found);
  }
}

}  // namespace

const Json* ModelConfig::Data::find(std::string_view key) const {
  const Json* at = &root;
  if (key.find('.') == std::string_view::npos) {
    if (const Json* found = member(root, key)) return found;
    for (const std::string_view name : sub_configs) {
      const Json* sub = member(root, name);
      if (sub == nullptr) continue;
      if (const Json* found = member(*sub, key)) return found;
      const Json* inner = member(*sub, "text_config");  // thinker_config of the omni models
      if (const Json* found = inner == nullptr ? nullptr : member(*inner, key)) return found;
    }
    return nullptr;
  }
  while (at != nullptr && !key.empty()) {
    const std::size_t dot = std::min(key.find('.'), key.size());
    at = member(*at, key.substr(0, dot));
    key.remove_prefix(std::min(dot + 1, key.size()));
  }
  return at;
}

ModelConfig::ModelConfig() : data_(std::make_unique<Data>()) {}
ModelConfig::ModelConfig(const ModelConfig& other) : data_(std::make_unique<Data>(*other.data_)) {}
ModelConfig::ModelConfig(ModelConfig&&) noexcept = default;
ModelConfig& ModelConfig::operator=(ModelConfig&&) noexcept = default;
ModelConfig::~ModelConfig() = default;

ModelConfig ModelConfig::parse(std::string_view text, const std::string& path) {
  const std::string label = printable(path, 4096);
  if (text.substr(0, byte_order_mark.size()) == byte_order_mark) text.remove_prefix(byte_order_mark.size());
  ModelConfig config;
  config.data_->path = path;
  config.data_->text = text;
  config.data_->root = parse_json(text, label);
  if (!config.data_->root.is_object()) throw Error(ErrorCode::bad_input, label + ": is no JSON object but " + shown(config.data_->root));
  return config;
}

const std::string& ModelConfig::path() const {
  return data_->path;
}

std::string ModelConfig::model_type() const {
  const Json* value = member(data_->root, "model_type");
  return value != nullptr && value->is_string() ? value->get<std::string>() : "";
}

std::vector<std::string> ModelConfig::architectures() const {
  std::vector<std::string> names;
  const Json* value = member(data_->root, "architectures");
  if (value == nullptr || !value->is_array()) return names;
  for (const Json& name : *value) {
    if (name.is_string()) names.push_back(name.get<std::string>());
  }
  return names;
}

bool ModelConfig::has(std::string_view key) const {
  return data_->find(key) != nullptr;
}

std::optional<std::string> ModelConfig::text(std::string_view key) const {
  const Json* value = data_->find(key);
  if (value == nullptr || !value->is_string()) return std::nullopt;
  return value->get<std::string>();
}

std::optional<std::string> ModelConfig::item(std::string_view key, std::uint64_t index) const {
  const Json* value = data_->find(key);
  if (value == nullptr) return std::nullopt;
  if (value->is_string()) {
    const auto& letters = value->get_ref<const std::string&>();
    return index < letters.size() ? std::optional(std::string(1, letters[index])) : std::nullopt;
  }
  if (!value->is_array() || index >= value->size() || !value->at(index).is_string()) return std::nullopt;
  return value->at(index).get<std::string>();
}

std::optional<std::uint64_t> ModelConfig::length(std::string_view key) const {
  const Json* value = data_->find(key);
  if (value == nullptr || !(value->is_string() || value->is_array())) return std::nullopt;
  return value->is_string() ? value->get_ref<const std::string&>().size() : value->size();
}

std::optional<std::uint64_t> ModelConfig::number(std::string_view key) const {
  const std::size_t dot = key.find('.');
  const bool is_inner =
      dot != std::string_view::npos && std::find(sub_configs.begin(), sub_configs.end(), key.substr(0, dot)) != sub_configs.end();
  const auto given = data_->overrides.find(is_inner ? key.substr(dot + 1) : key);
  if (given != data_->overrides.end()) return given->second;
  const Json* value = data_->find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_number_unsigned()) {
    throw Error(ErrorCode::bad_input,
                printable(data_->path, 4096) + ": " + printable(key) + " is " + shown(*value) + ", not a whole number; correct it");
  }
  return value->get<std::uint64_t>();
}

std::vector<std::uint64_t> ModelConfig::numbers(std::string_view key) const {
  std::vector<std::uint64_t> found;
  const Json* value = data_->find(key);
  if (value == nullptr || !value->is_array()) return found;
  for (const Json& item : *value) {
    if (item.is_number_unsigned()) found.push_back(item.get<std::uint64_t>());
  }
  return found;
}

std::optional<bool> ModelConfig::flag(std::string_view key) const {
  const Json* value = data_->find(key);
  if (value == nullptr || !value->is_boolean()) return std::nullopt;
  return value->get<bool>();
}

std::optional<DType> ModelConfig::dtype() const {
  for (const std::string_view key : {"dtype", "torch_dtype"}) {
    if (const auto name = text(key)) {
      std::string_view bare = *name;
      if (bare.substr(0, 6) == "torch.") bare.remove_prefix(6);
      if (const auto dtype = dtype_from_torch(bare)) return dtype;
    }
  }
  return std::nullopt;
}

bool ModelConfig::is_overridden() const {
  return !data_->overrides.empty();
}

void ModelConfig::override_number(const std::string& key, std::uint64_t value) {
  data_->overrides[key] = value;
}

std::string ModelConfig::edited(const Edits& edits) const {
  const auto of_language = [](const JsonMember& one, std::string_view) {
    return one.path.size() == 1 || std::find(sub_configs.begin(), sub_configs.end(), one.path.front()) != sub_configs.end();
  };
  Editor editor(data_->text);
  if (edits.dtype) {
    const std::string value = '"' + std::string(info(*edits.dtype).name) + '"';
    const auto is_plain = [](const JsonMember&, std::string_view old) { return old.front() == '"' || old == "null"; };
    const bool now = editor.set_present("dtype", value, is_plain);
    const bool before = editor.set_present("torch_dtype", value, is_plain);
    if (!now && !before) editor.add("torch_dtype", value);
  }
  if (edits.tie_word_embeddings) {
    const std::string value = *edits.tie_word_embeddings ? "true" : "false";
    if (!editor.set_present("tie_word_embeddings", value, of_language)) editor.add("tie_word_embeddings", value);
  }
  if (edits.vocab_size) {
    const std::string value = std::to_string(*edits.vocab_size);
    if (!editor.set_present("vocab_size", value, of_language)) editor.add("vocab_size", value);
  }
  for (const auto& [key, number] : data_->overrides) {  // the weights were checked against these
    if (!editor.set_present(key, std::to_string(number), of_language)) editor.add(key, std::to_string(number));
  }
  editor.rename_architectures(edits.architectures);
  std::string text = editor.result();
  return edits.remove_quantization ? without_all(std::move(text), "quantization_config") : text;
}

}  // namespace unshard
