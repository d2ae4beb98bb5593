#include "megatron_contents.h"

#include <algorithm>
#include <optional>
#include <set>
#include <string_view>

#include "formats/megatron_experts.h"
#include "formats/megatron_layers.h"
#include "names.h"
#include "unshard/error.h"
#include "unshard/mapping.h"

namespace unshard {
namespace {

constexpr std::size_t most_findings = 20;
constexpr std::uint64_t most_layers = 1 << 16;

/// What stands behind "decoder.layers." (or its older names) in a language model's tensor; none in other tensors.
std::optional<std::string_view> within_layers(std::string_view name) {
  for (bool again = true; again;) {
    again = false;
    for (const std::string_view wrapper : {"model.", "module.", "language_model."}) {
      if (!name.starts_with(wrapper)) continue;
      name.remove_prefix(wrapper.size());
      again = true;
    }
  }
  for (const std::string_view stack : layer_stacks) {
    if (name.starts_with(stack)) return name.substr(stack.size());
  }
  return std::nullopt;
}

std::optional<std::uint64_t> leading_number(std::string_view text) {
  const auto number = take_number(text);
  return number && *number < most_layers && text.starts_with('.') ? number : std::nullopt;
}

std::optional<std::uint64_t> stated(const Facts& facts, const char* name) {
  const auto found = facts.find(name);
  return found == facts.end() ? std::nullopt : std::optional(found->second);
}

class Reader {
 public:
  Reader(const Facts& facts, const std::string& subject)
      : layers_(stated(facts, "args_layers")), experts_(stated(facts, "args_experts")), subject_(subject) {}

  MegatronContents run(const std::vector<TensorRow>& table) {
    for (const TensorRow& row : table) {
      const auto rest = within_layers(row.name);
      if (!rest) continue;
      if (is_lora(row.name)) {
        has_adapters_ = true;
        continue;
      }
      const auto number = leading_number(*rest);
      const std::uint64_t depth = number ? 0 : 1;  // a stack of all layers has them in its first dimension
      if (number) {
        numbered_.insert(*number);
      } else if (!row.shape.empty()) {
        take_stack(row);
      }
      if (rest->find("mlp.experts.experts.linear_fc") != std::string_view::npos && row.shape.size() > depth + 1)
        take_experts(row, row.shape[depth]);
    }
    find_gaps();
    contents_.layers.assign(numbered_.begin(), numbered_.end());
    contents_.experts.assign(counts_.begin(), counts_.end());
    return std::move(contents_);
  }

 private:
  void error(const std::string& subject, const std::string& text) {
    if (contents_.findings.size() < most_findings) contents_.findings.push_back({Severity::error, subject, text, ErrorCode::bad_input});
  }

  void take_stack(const TensorRow& row) {
    const std::uint64_t count = row.shape[0];
    if (layers_ && count != *layers_)
      error(row.name, "holds " + std::to_string(count) + " layers, but the training arguments say " + std::to_string(*layers_));
    for (std::uint64_t layer = 0; layer < std::min(count, most_layers); ++layer) numbered_.insert(layer);
  }

  void take_experts(const TensorRow& row, std::uint64_t count) {
    counts_.insert(count);
    if (experts_ && count != *experts_)
      error(row.name, "holds " + std::to_string(count) + " experts, but the training arguments say " + std::to_string(*experts_));
  }

  void find_gaps() {
    if (numbered_.empty() && has_adapters_) return;  // adapters alone
    const std::uint64_t end = layers_ ? *layers_ : numbered_.empty() ? 0 : *numbered_.rbegin() + 1;
    if (end > most_layers) return;  // no model has so many
    std::vector<std::uint64_t> missing;
    for (std::uint64_t layer = 0; layer < end; ++layer) {
      if (!numbered_.contains(layer)) missing.push_back(layer);
    }
    if (!missing.empty()) error(subject_, "no file has layers " + as_ranges(missing) + " of " + std::to_string(end));
    if (!numbered_.empty() && *numbered_.rbegin() >= end)
      error(subject_, "has layer " + std::to_string(*numbered_.rbegin()) + ", but the training arguments say " + std::to_string(end));
  }

  std::optional<std::uint64_t> layers_, experts_;
  const std::string& subject_;
  std::set<std::uint64_t> numbered_, counts_;
  bool has_adapters_ = false;
  MegatronContents contents_;
};

}  // namespace

MegatronContents megatron_contents(const std::vector<TensorRow>& table, const Facts& facts, const std::string& subject) {
  return Reader(facts, subject).run(table);
}

std::string line_of(const MegatronContents& contents) {
  std::string line;
  if (!contents.layers.empty()) line = "layers " + as_ranges(contents.layers);
  for (const std::uint64_t count : contents.experts) line += (line.empty() ? "experts " : "; experts ") + std::to_string(count);
  return line;
}

}  // namespace unshard
