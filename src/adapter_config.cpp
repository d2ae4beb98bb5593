// adapter_config.json (peft src/peft/config.py, src/peft/tuners/lora/config.py). Readers fill missing fields with defaults and drop unknown
// ones; a field that changes what an adapter means must not be dropped, so those that this program does not know how to fold are refused
// when they are set.
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <regex>

#include "unshard/error.h"
#include "unshard/lora.h"

namespace unshard {
namespace {

using Json = nlohmann::ordered_json;

constexpr int deepest = 100;
constexpr std::size_t most_parameters = 4096;

class Reader {
 public:
  Reader(std::string_view text, const std::string& path) : path_(path) {
    bool too_deep = false;
    const auto limit_depth = [&](int depth, Json::parse_event_t, Json&) {
      too_deep = too_deep || depth > deepest;
      return !too_deep;
    };
    json_ = Json::parse(text.begin(), text.end(), limit_depth, false);
    if (too_deep || !json_.is_object()) fail("is no JSON object");
  }

  [[noreturn]] void fail(const std::string& what) const { throw Error(ErrorCode::bad_input, printable(path_, 4096) + ": " + what); }

  [[noreturn]] void refuse(const std::string& what) const { throw Error(ErrorCode::unsupported, printable(path_, 4096) + ": " + what); }

  /// Null when absent.
  [[nodiscard]] const Json& at(const char* key) const {
    static const Json nothing;
    const auto found = json_.find(key);
    return found == json_.end() ? nothing : *found;
  }

  /// Absent, null, false, an empty list, object or text, 0.
  [[nodiscard]] bool is_set(const char* key) const {
    const Json& value = at(key);
    if (value.is_boolean()) return value.get<bool>();
    if (value.is_number()) return value.get<double>() != 0;
    return !value.is_null() && !value.empty() && !(value.is_string() && value.get_ref<const std::string&>().empty());
  }

  [[nodiscard]] bool flag(const char* key) const {
    const Json& value = at(key);
    if (value.is_null()) return false;
    if (!value.is_boolean()) fail(std::string(key) + " is neither true nor false");
    return value.get<bool>();
  }

  [[nodiscard]] std::string text(const char* key) const {
    const Json& value = at(key);
    if (value.is_null()) return "";
    if (!value.is_string()) fail(std::string(key) + " is no text");
    return value.get<std::string>();
  }

  [[nodiscard]] std::optional<double> number(const char* key) const {
    const Json& value = at(key);
    if (value.is_null()) return std::nullopt;
    return number_of(value, key);
  }

  [[nodiscard]] std::vector<std::pair<std::string, double>> patterns(const char* key) const {
    std::vector<std::pair<std::string, double>> patterns;
    const Json& value = at(key);
    if (value.is_null()) return patterns;
    if (!value.is_object()) fail(std::string(key) + " is no JSON object");
    for (const auto& [pattern, number] : value.items()) patterns.emplace_back(pattern, number_of(number, key));
    return patterns;
  }

  [[nodiscard]] std::vector<std::string> texts(const char* key) const {
    std::vector<std::string> texts;
    const Json& value = at(key);
    if (value.is_null()) return texts;
    if (value.is_string()) return {value.get<std::string>()};
    if (!value.is_array()) fail(std::string(key) + " is no list");
    for (const Json& one : value) {
      if (!one.is_string()) fail(std::string(key) + " holds something else than texts");
      texts.push_back(one.get<std::string>());
    }
    return texts;
  }

  [[nodiscard]] std::vector<std::uint64_t> rows_of(const Json& list) const {
    std::vector<std::uint64_t> rows;
    if (!list.is_array()) fail("trainable_token_indices is neither a list nor an object of lists");
    for (const Json& one : list) {
      if (!one.is_number_unsigned()) fail("trainable_token_indices holds something else than token numbers");
      rows.push_back(one.get<std::uint64_t>());
    }
    return rows;
  }

 private:
  [[nodiscard]] double number_of(const Json& value, const char* key) const {
    if (!value.is_number() || !std::isfinite(value.get<double>())) fail(std::string(key) + " holds something else than a number");
    return value.get<double>();
  }

  const std::string& path_;
  Json json_;
};

/// Initialisations that subtract the adapter's first product from the base weights; saved unconverted, the adapter is right only there.
void check_initialisation(const Reader& reader) {
  const Json& value = reader.at("init_lora_weights");
  if (!value.is_string()) return;
  std::string name = value.get<std::string>();
  for (char& c : name) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  for (const char* kept : {"gaussian", "eva", "orthogonal", "mica"})
    if (name == kept) return;
  reader.refuse(
      "init_lora_weights is " + printable(value.get<std::string>()) +
      ", which changes the base weights before training: folded into the original base it would be wrong; convert the adapter (PEFT's "
      "save_pretrained with path_initial_model_for_weight_conversion) and give that");
}

void check_method(const Reader& reader) {
  const std::string method = reader.text("peft_type");
  if (!method.empty() && method != "LORA") reader.refuse("peft_type is " + printable(method) + "; only LORA adapters can be folded");
  struct Field {
    const char* key;
    const char* what;
  };
  constexpr std::array<Field, 9> fields{{{"alora_invocation_tokens", "activated LoRA acts on some tokens only and has no fold"},
                                         {"use_qalora", "QALoRA has another formula"},
                                         {"arrow_config", "Arrow routing chooses adapters while it runs"},
                                         {"kasa_config", "KaSA has another formula and another base"},
                                         {"use_bdlora", "BD-LoRA stores its matrices in another form"},
                                         {"velora_config", "VeLoRA is not known to fold as LoRA does"},
                                         {"monteclora_config", "MonteCLoRA is not known to fold as LoRA does"},
                                         {"layer_replication", "layers are replicated, so the base has other layers than the adapter"},
                                         {"megatron_config", "adapters of Megatron's parallel layers are not supported in this form"}}};
  for (const Field& field : fields)
    if (reader.is_set(field.key)) reader.refuse(std::string(field.key) + " is set: " + field.what + "; this adapter can't be folded");
}

// A pattern from a file must not take exponential time, or recurse once per character.
#ifdef __GLIBCXX__
constexpr auto regex_kind = std::regex_constants::ECMAScript | std::regex_constants::__polynomial;
#else
constexpr auto regex_kind = std::regex_constants::ECMAScript;
#endif

std::optional<double> first_match(const std::vector<std::pair<std::string, double>>& patterns, const std::string& name,
                                  const std::string& path) {
  for (const auto& [pattern, value] : patterns) {
    if (name == pattern || (name.size() > pattern.size() && name.ends_with("." + pattern))) return value;
    constexpr std::size_t longest = 1000;  // compiling a pattern recurses into it
    if (pattern.size() > longest || name.size() > longest) {
      throw Error(ErrorCode::unsupported, printable(path, 4096) + ": the pattern " + printable(pattern) + " or the name " +
                                              printable(name) + " is longer than " + std::to_string(longest) + " bytes");
    }
    try {
      if (std::regex_match(name, std::regex("(.*\\.)?(" + pattern + ")", regex_kind))) return value;
    } catch (const std::regex_error&) {
      throw Error(ErrorCode::bad_input, printable(path, 4096) + ": " + printable(pattern) + " is no regular expression");
    }
  }
  return std::nullopt;
}

}  // namespace

AdapterConfig parse_adapter_config(std::string_view text, const std::string& path) {
  const Reader reader(text, path);
  check_method(reader);
  check_initialisation(reader);
  AdapterConfig config;
  config.path = path;
  config.rank = reader.number("r").value_or(8);
  config.alpha = reader.number("lora_alpha").value_or(8);
  config.rank_stabilised = reader.flag("use_rslora");
  config.weights_decomposed = reader.flag("use_dora");
  config.ties_weights = reader.flag("ensure_weight_tying");
  config.inputs_first = reader.flag("fan_in_fan_out");
  config.rank_pattern = reader.patterns("rank_pattern");
  config.alpha_pattern = reader.patterns("alpha_pattern");
  config.target_parameters = reader.texts("target_parameters");
  if (config.target_parameters.size() > most_parameters) {
    throw Error(ErrorCode::bad_input, printable(path, 4096) + ": lists " + std::to_string(config.target_parameters.size()) +
                                          " target_parameters, at most " + std::to_string(most_parameters) + " were expected");
  }
  config.modules_to_save = reader.texts("modules_to_save");
  config.task_type = reader.text("task_type");
  config.base_model = reader.text("base_model_name_or_path");
  config.peft_version = reader.text("peft_version");
  if (const std::string bias = reader.text("bias"); !bias.empty()) config.bias = bias;
  const Json& tokens = reader.at("trainable_token_indices");
  if (tokens.is_object()) {
    for (const auto& [module, rows] : tokens.items()) config.token_rows.emplace_back(module, reader.rows_of(rows));
  } else if (!tokens.is_null()) {
    config.token_rows.emplace_back("", reader.rows_of(tokens));
  }
  return config;
}

AdapterConfig parse_training_meta(std::string_view text, const std::string& path) {
  const Reader reader(text, path);
  AdapterConfig config;
  config.path = path;
  config.rank = reader.number("r");
  config.alpha = reader.number("lora_alpha");
  config.task_type = reader.text("task_type");
  return config;
}

std::optional<AdapterConfig> parse_swift_args(std::string_view text, const std::string& path) {
  const Reader reader(text, path);
  for (const char* kind : {"tuner_type", "train_type"}) {
    const Json& value = reader.at(kind);
    if (value.is_string() && value.get_ref<const std::string&>().find("lora") == std::string::npos) return std::nullopt;
  }
  AdapterConfig config;
  config.path = path;
  config.alpha = reader.number("lora_alpha");
  if (!config.alpha) return std::nullopt;
  config.rank = reader.number("lora_rank");
  config.rank_stabilised = reader.flag("use_rslora");
  return config;
}

std::optional<double> alpha_of(const AdapterConfig& config, const std::string& name) {
  const auto own = first_match(config.alpha_pattern, name, config.path);
  return own ? own : config.alpha;
}

std::optional<std::uint64_t> rank_of(const AdapterConfig& config, const std::string& name) {
  const auto own = first_match(config.rank_pattern, name, config.path);
  const double rank = own ? *own : config.rank.value_or(0);
  constexpr double most = 1U << 31U;
  if (!(rank >= 1) || rank > most || rank != std::floor(rank)) return std::nullopt;
  return static_cast<std::uint64_t>(rank);
}

double scale_of(const AdapterConfig& config, const std::string& name, std::uint64_t rank) {
  const auto alpha = alpha_of(config, name);
  const std::string where = printable(config.path, 4096) + ": ";
  if (!alpha) {
    throw Error(ErrorCode::bad_input,
                where + "nothing says the lora_alpha of " + printable(name) + ", without which its scale is unknown; give --lora-alpha N");
  }
  if (*alpha == 0) {
    throw Error(ErrorCode::bad_input, where +
                                          "lora_alpha is 0, with which the adapter does nothing (older mergers of verl wrote that); put "
                                          "the alpha of the training run there, or give --lora-alpha N");
  }
  const auto inner = static_cast<double>(rank);
  return *alpha / (config.rank_stabilised ? std::sqrt(inner) : inner);
}

}  // namespace unshard
