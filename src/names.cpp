#include "names.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "unshard/mapping.h"

namespace unshard {
namespace {

// torch/_dynamo/eval_frame.py, FSDP1 (fully_sharded_data_parallel.py, and `_fpw_module` of 1.11 to 1.13), checkpoint_wrapper.py
bool is_wrapper(std::string_view element) {
  return element == "_orig_mod" || element == "_fsdp_wrapped_module" || element == "_checkpoint_wrapped_module" || element == "_fpw_module";
}

// DDP and Lightning; only where a wrapper can be, since a model may have a module of that name itself.
bool is_leading_wrapper(std::string_view element) {
  return element == "module" || element == "_forward_module";
}

std::string join(const std::vector<std::string_view>& elements) {
  std::string name;
  for (std::size_t i = 0; i < elements.size(); ++i) {
    if (i > 0) name += '.';
    name += elements[i];
  }
  return name;
}

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

/// Compares two digit strings of any length by value.
int compare_numbers(std::string_view a, std::string_view b) {
  a.remove_prefix(std::min(a.find_first_not_of('0'), a.size()));
  b.remove_prefix(std::min(b.find_first_not_of('0'), b.size()));
  if (a.size() != b.size()) return a.size() < b.size() ? -1 : 1;
  return a.compare(b);
}

int compare_elements(std::string_view a, std::string_view b) {
  const auto split = [](std::string_view element) {
    std::size_t end = element.size();
    while (end > 0 && is_digit(element[end - 1])) --end;
    return std::pair{element.substr(0, end), element.substr(end)};
  };
  const auto [a_word, a_number] = split(a);
  const auto [b_word, b_number] = split(b);
  const bool a_is_number = a_word.empty() && !a_number.empty();
  const bool b_is_number = b_word.empty() && !b_number.empty();
  if (a_is_number != b_is_number) return a_is_number ? -1 : 1;
  if (const int words = a_word.compare(b_word); words != 0) return words;
  if (a_number.empty() != b_number.empty()) return a_number.empty() ? -1 : 1;
  return compare_numbers(a_number, b_number);
}

}  // namespace

bool ends_with_element(std::string_view name, std::string_view ending) {
  return name == ending || (name.size() > ending.size() && name.ends_with(ending) && name[name.size() - ending.size() - 1] == '.');
}

std::vector<std::string_view> split_name(std::string_view name) {
  std::vector<std::string_view> elements;
  std::size_t begin = 0;
  while (true) {
    const std::size_t dot = name.find('.', begin);
    elements.push_back(name.substr(begin, dot == std::string_view::npos ? dot : dot - begin));
    if (dot == std::string_view::npos) return elements;
    begin = dot + 1;
  }
}

std::string without_wrappers(std::string_view name) {
  const std::vector<std::string_view> elements = split_name(name);
  std::vector<std::string_view> kept;
  bool beside = true;  // at the front, or behind a wrapper's element
  for (std::size_t i = 0; i < elements.size(); ++i) {
    const bool last = i + 1 == elements.size();
    const bool before_wrapper = !last && is_wrapper(elements[i + 1]);
    const bool wrapper = is_wrapper(elements[i]) || (is_leading_wrapper(elements[i]) && (beside || before_wrapper));
    if (!wrapper || last) kept.push_back(elements[i]);
    beside = wrapper;
  }
  return join(kept);
}

bool is_lora(std::string_view name) {
  const std::vector<std::string_view> elements = split_name(name);
  const bool is_peft = std::any_of(elements.begin(), elements.end(), [](std::string_view element) {
    return element == "lora_A" || element == "lora_B" || element == "lora_embedding_A" || element == "lora_embedding_B" ||
           element == "lora_magnitude_vector" || element == "trainable_tokens_delta";
  });
  return is_peft || lora_matrix(name) || name.ends_with(".adapter.weight_magnitude");
}

std::optional<LoraMatrix> lora_matrix(std::string_view name) {
  const std::vector<std::string_view> elements = split_name(name);
  const auto from = [&](std::size_t first, std::size_t end) {
    const char* begin = elements[first].data();
    return std::string_view(begin, static_cast<std::size_t>(elements[end - 1].data() + elements[end - 1].size() - begin));
  };
  for (std::size_t i = 1; i + 1 < elements.size(); ++i) {
    LoraMatrix found{from(0, i), {}, elements.back(), {}, false, false};
    std::size_t end = elements.size() - 1;  // of the matrix
    if (elements[i] == "lora_A" || elements[i] == "lora_B") {
      found.is_a = elements[i] == "lora_A";
      if (!found.rest.starts_with("weight")) return std::nullopt;
    } else if (elements[i] == "adapter") {  // a model may have adapters of another kind (wav2vec2)
      constexpr std::string_view mark = "adapter_";
      const bool is_canonical = elements[i + 1].starts_with(mark);
      if (is_canonical) found.projection = elements[i + 1].substr(mark.size());
      const std::size_t at = i + (is_canonical ? 2 : 1);
      if (at + 1 >= elements.size() || (elements[at] != "linear_in" && elements[at] != "linear_out")) return std::nullopt;
      found.is_a = elements[at] == "linear_in";
      found.of_bridge = true;
      found.rest = from(at + 1, elements.size());
      end = at + 1;
    } else {
      continue;
    }
    found.matrix = from(i, end);
    return found;
  }
  return std::nullopt;
}

bool is_of_vocabulary(std::string_view name) {
  constexpr std::array<std::string_view, 3> heads{"lm_head.weight", "embed_out.weight", "output_layer.weight"};
  const auto is_end = [&](std::string_view ending) { return name.ends_with(ending); };
  return std::ranges::any_of(embedding_endings, is_end) || std::ranges::any_of(heads, is_end);
}

bool natural_less(std::string_view a, std::string_view b) {
  while (true) {
    const std::size_t a_end = std::min(a.find('.'), a.size());
    const std::size_t b_end = std::min(b.find('.'), b.size());
    if (const int order = compare_elements(a.substr(0, a_end), b.substr(0, b_end)); order != 0) return order < 0;
    if (a_end == a.size() || b_end == b.size()) return a_end == a.size() && b_end < b.size();
    a.remove_prefix(a_end + 1);
    b.remove_prefix(b_end + 1);
  }
}

std::string without_peft(std::string_view name) {
  constexpr std::string_view prefix = "base_model.model.";
  while (name.starts_with(prefix)) name.remove_prefix(prefix.size());
  const std::vector<std::string_view> elements = split_name(name);
  std::vector<std::string_view> kept;
  for (std::size_t i = 0; i < elements.size(); ++i) {
    const bool wraps = i + 1 < elements.size() && elements[i] == "token_adapter" && elements[i + 1] == "base_layer";
    if (!wraps && elements[i] != "base_layer" && elements[i] != "original_module") kept.push_back(elements[i]);
  }
  return kept.empty() ? std::string(name) : join(kept);
}

bool is_saved_module(std::string_view name) {
  const std::vector<std::string_view> elements = split_name(name);
  return std::find(elements.begin(), elements.end(), "modules_to_save") != elements.end();
}

std::string with_parts_replaced(std::string_view name, const std::vector<std::pair<std::string, std::string>>& parts) {
  std::string replaced;
  std::size_t at = 0;
  while (at < name.size()) {
    const std::pair<std::string, std::string>* best = nullptr;
    for (const auto& part : parts) {
      if (name.substr(at, part.first.size()) == part.first && (best == nullptr || part.first.size() > best->first.size())) best = &part;
    }
    if (best == nullptr) {
      replaced += name[at++];
    } else {
      replaced += best->second;
      at += best->first.size();
    }
  }
  return replaced;
}

}  // namespace unshard
