// Whole-number expressions over config.json, for shapes and conditions of the family files: `num_key_value_heads * head_dim`,
// `(l + 1) % decoder_sparse_step == 0 and not (l in mlp_only_layers)`, `n_inner | 4 * n_embd`.
//
//     fallback := or ("|" or)*            the first that has a value
//     or       := and ("or" and)*
//     and      := not ("and" not)*
//     not      := "not" not | compare
//     compare  := sum (("==" | "!=" | "<" | "<=" | ">" | ">=") sum | "in" name)?
//     sum      := product (("+" | "-") product)*
//     product  := atom (("*" | "/" | "%") atom)*
//     atom     := number | name | "(" fallback ")"
//               | name ("==" | "!=") "'" text "'"                       a text
//               | name "[" fallback "]" ("==" | "!=") "'" text "'"      an item of a list of texts, or a letter of a text
//               | "length" "(" name ")"                                 of such a list or text
//
// A name that config.json lacks (or has as null) has no value, and what is computed from it has none either; `in` a list that is not there
// is 0. Conditions are 1 and 0. A division with a rest, by zero, or a result below zero or above 2^63 is an error that names the numbers.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace unshard {

/// What a name stands for. Throws Error(bad_input) when config.json has something else than a whole number there.
class Names {
 public:
  virtual ~Names() = default;
  [[nodiscard]] virtual std::optional<std::uint64_t> value(const std::string& name) const = 0;
  [[nodiscard]] virtual bool list_has(const std::string& name, std::uint64_t item) const = 0;
  [[nodiscard]] virtual std::optional<std::string> text(const std::string& name) const = 0;  ///< none where no text stands
  /// Item `index` of a list of texts, or that letter of a text; none where there is none.
  [[nodiscard]] virtual std::optional<std::string> item(const std::string& name, std::uint64_t index) const = 0;
  [[nodiscard]] virtual std::optional<std::uint64_t> length(const std::string& name) const = 0;  ///< of such a list or text
  [[nodiscard]] virtual std::string where() const = 0;                                           ///< for errors: the path of config.json
};

/// A parsed expression. Copies share the tree.
class Expression {
 public:
  /// Local. Throws Error(bad_input) starting with `label` for text that is none, or is nested too deep.
  static Expression parse(std::string_view text, const std::string& label);
  [[nodiscard]] std::optional<std::uint64_t> value(const Names& names) const;
  /// The names in it, in order of appearance.
  [[nodiscard]] std::vector<std::string> names() const;
  [[nodiscard]] const std::string& text() const { return text_; }

  struct Node;

 private:
  std::string text_;
  std::shared_ptr<const Node> root_;
};

}  // namespace unshard
