// What kind of model it is: its output layer, and the class that config.json names.
#include <algorithm>
#include <array>

#include "mapping_steps.h"
#include "unshard/error.h"

namespace unshard {
namespace {

constexpr std::string_view language_model = "ForCausalLM";

/// The class of transformers that has these heads: its token classification has a bias, its sequence classification has none.
std::string_view class_of_score_head(const Published& published) {
  if (published.find("score.weight") == nullptr || published.find("lm_head.weight") != nullptr) return {};
  return published.find("score.bias") != nullptr ? "ForTokenClassification" : "ForSequenceClassification";
}

}  // namespace

bool has_language_head(const MapContext& context, const Published& published) {
  if (context.options.is_value_model) return false;
  const auto is_head = [](const TensorSpec& spec) { return spec.head; };
  for (const TensorSpec& spec : context.family.tensors) {
    if (is_head(spec) && published.find(spec.name.text()) != nullptr) return true;
  }
  const std::vector<std::string> architectures = context.config.architectures();
  const auto names_language_model = [](const std::string& name) {
    constexpr std::array<std::string_view, 3> kinds{"CausalLM", "LMHead", "ConditionalGeneration"};
    return std::any_of(kinds.begin(), kinds.end(), [&](std::string_view kind) { return name.find(kind) != std::string::npos; });
  };
  if (!architectures.empty() && std::none_of(architectures.begin(), architectures.end(), names_language_model)) return false;
  return std::none_of(published.targets.begin(), published.targets.end(), [](const Target& target) {
    constexpr std::array<std::string_view, 4> heads{"score.", "classifier.", "v_head.", "value_head."};
    return std::any_of(heads.begin(), heads.end(), [&](std::string_view head) { return target.name.rfind(head, 0) == 0; });
  });
}

void settle_architectures(const MapContext& context, const Published& published, Mapping& mapping) {
  const std::string_view with_score = class_of_score_head(published);
  for (const std::string& name : context.config.architectures()) {
    std::string plain = name;
    constexpr std::string_view wrapper = "FSDP";
    if (plain.rfind(wrapper, 0) == 0) plain.erase(0, wrapper.size());
    const std::size_t ending = plain.size() > language_model.size() ? plain.size() - language_model.size() : 0;
    if (!with_score.empty() && ending > 0 && plain.substr(ending) == language_model)
      plain.replace(ending, language_model.size(), with_score);
    if (plain == name || plain.empty()) continue;
    mapping.edits.architectures.emplace_back(name, plain);
    mapping.notes.push_back("config.json: " + printable(name) + " becomes " + printable(plain));
  }
}

}  // namespace unshard
