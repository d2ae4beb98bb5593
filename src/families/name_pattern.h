// Names of tensors with variables: `model.layers.{l}.mlp.experts.{e}.up_proj.weight`, `model.language_model.{rest*}`.
// `{l}` stands for a number (digits, as Python writes them), `{rest*}` for any text of at least one character; a pattern has at most one of
// the latter. `{num_hidden_layers + k}`, which is no plain word, is computed: it stands for the number that the expression gives.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace unshard {

/// What variables stand for; few.
using Captures = std::vector<std::pair<std::string, std::string>>;

/// Whether a variable is an expression over others.
[[nodiscard]] bool is_computed(std::string_view variable);

[[nodiscard]] const std::string* find_capture(const Captures& captures, std::string_view variable);

/// Local, pure. The number that a variable stands for: at most 18 digits. A text that is no number is 0.
[[nodiscard]] std::uint64_t number_of(std::string_view digits);

class NamePattern {
 public:
  /// Local. Throws Error(bad_input) starting with `label`.
  static NamePattern parse(std::string_view text, const std::string& label);
  [[nodiscard]] std::optional<Captures> match(std::string_view name) const;
  /// The name for these values; every variable of the pattern must be among them.
  [[nodiscard]] std::string fill(const Captures& captures) const;
  [[nodiscard]] const std::vector<std::string>& variables() const { return variables_; }
  [[nodiscard]] const std::string& text() const { return text_; }

 private:
  struct Element {
    std::string text;  ///< literal, or the variable's name
    enum class Kind : unsigned char { literal, number, any } kind = Kind::literal;
  };
  [[nodiscard]] bool match_from(std::size_t element, std::string_view rest, Captures& captures) const;

  std::string text_;
  std::vector<Element> elements_;
  std::vector<std::string> variables_;
};

}  // namespace unshard
