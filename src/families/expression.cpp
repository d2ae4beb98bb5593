#include "families/expression.h"

#include <algorithm>
#include <array>

#include "checked_math.h"
#include "unshard/error.h"

namespace unshard {

struct Expression::Node {
  std::string op;  ///< "number", "name", "text", "item", "length", or an operator
  std::uint64_t number = 0;
  std::string name;
  std::string text;  ///< of a text or an item: what it is compared with
  std::vector<Node> operands;
};

namespace {

using Node = Expression::Node;
constexpr int most_levels = 32;
constexpr std::size_t longest_text = 1000;  // bounds the depth of the tree too
constexpr std::uint64_t largest = (std::uint64_t{1} << 63) - 1;

bool is_name_character(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '.';
}

class Parser {
 public:
  Parser(std::string_view text, const std::string& label) : text_(text), label_(label) { next(); }

  Node all() {
    Node node = fallback();
    if (!token_.empty()) fail();
    return node;
  }

 private:
  [[noreturn]] void fail() const {
    throw Error(ErrorCode::bad_input,
                label_ + ": '" + printable(text_) + "' is no expression" + (token_.empty() ? "" : ", near '" + printable(token_) + "'"));
  }

  void next() {
    while (at_ < text_.size() && text_[at_] == ' ') ++at_;
    const std::size_t begin = at_;
    while (at_ < text_.size() && is_name_character(text_[at_])) ++at_;
    if (at_ == begin && at_ < text_.size() && text_[at_] == '\'') {
      const std::size_t end = text_.find('\'', at_ + 1);
      at_ = end == std::string_view::npos ? text_.size() : end + 1;
    } else if (at_ == begin && at_ < text_.size()) {
      const std::string_view two = text_.substr(at_, 2);
      at_ += two == "==" || two == "!=" || two == "<=" || two == ">=" ? 2 : 1;
    }
    token_ = text_.substr(begin, at_ - begin);
  }

  bool take(std::string_view token) {
    if (token_ != token) return false;
    next();
    return true;
  }

  /// Operands joined by any of `operators`, from the left.
  template <std::size_t count, class Operand>
  Node chain(const std::array<std::string_view, count>& operators, Operand operand) {
    Node left = operand();
    while (true) {
      const auto found = std::find(operators.begin(), operators.end(), token_);
      if (found == operators.end()) return left;
      next();
      Node right = operand();
      left = Node{std::string(*found), 0, {}, {}, {std::move(left), std::move(right)}};
    }
  }

  Node fallback() {
    if (++level_ > most_levels) fail();
    Node node = chain(std::array<std::string_view, 1>{"|"}, [this] { return either(); });
    --level_;
    return node;
  }
  Node either() {
    return chain(std::array<std::string_view, 1>{"or"}, [this] { return both(); });
  }
  Node both() {
    return chain(std::array<std::string_view, 1>{"and"}, [this] { return negation(); });
  }
  Node negation() {
    if (!take("not")) return compare();
    if (++level_ > most_levels) fail();
    Node node{"not", 0, {}, {}, {negation()}};
    --level_;
    return node;
  }
  Node compare() {
    Node left = sum();
    if (token_ == "==" || token_ == "!=" || token_ == "<" || token_ == "<=" || token_ == ">" || token_ == ">=") {
      const std::string op(token_);
      next();
      if (left.op == "name" && (op == "==" || op == "!=") && token_.starts_with('\''))
        return compared_with_text(Node{"text", 0, std::move(left.name), {}, {}}, op == "==");
      return Node{op, 0, {}, {}, {std::move(left), sum()}};
    }
    if (!take("in")) return left;
    if (token_.empty() || !is_name_character(token_.front())) fail();
    Node node{"in", 0, std::string(token_), {}, {std::move(left)}};
    next();
    return node;
  }
  Node sum() {
    return chain(std::array<std::string_view, 2>{"+", "-"}, [this] { return product(); });
  }
  Node product() {
    return chain(std::array<std::string_view, 3>{"*", "/", "%"}, [this] { return atom(); });
  }

  Node atom() {
    if (take("(")) {
      Node node = fallback();
      if (!take(")")) fail();
      return node;
    }
    if (token_.empty() || !is_name_character(token_.front()) || token_ == "and" || token_ == "or" || token_ == "in" || token_ == "not")
      fail();
    const std::string_view token = token_;
    if (token.front() < '0' || token.front() > '9') {
      next();
      if (take("[")) return item(std::string(token));
      if (token == "length" && take("(")) return length();
      return Node{"name", 0, std::string(token), {}, {}};
    }
    std::uint64_t number = 0;
    for (const char c : token) {
      if (c < '0' || c > '9' || number > (largest - 9) / 10) fail();
      number = number * 10 + static_cast<std::uint64_t>(c - '0');
    }
    next();
    return Node{"number", number, {}, {}, {}};
  }

  /// What stands behind `name[`.
  Node item(std::string name) {
    Node index = fallback();
    if (!take("]") || (token_ != "==" && token_ != "!=")) fail();
    const bool is_equal = token_ == "==";
    next();
    return compared_with_text(Node{"item", 0, std::move(name), {}, {std::move(index)}}, is_equal);
  }
  /// `node`, compared with the quoted text that follows.
  Node compared_with_text(Node node, bool is_equal) {
    if (token_.size() < 2 || token_.front() != '\'' || token_.back() != '\'') fail();
    node.text = token_.substr(1, token_.size() - 2);
    next();
    return is_equal ? std::move(node) : Node{"not", 0, {}, {}, {std::move(node)}};
  }
  Node length() {
    if (token_.empty() || !is_name_character(token_.front())) fail();
    Node node{"length", 0, std::string(token_), {}, {}};
    next();
    if (!take(")")) fail();
    return node;
  }

  std::string_view text_;
  const std::string& label_;
  std::size_t at_ = 0;
  std::string_view token_;
  int level_ = 0;
};

/// Evaluates one expression; its text is for errors.
class Evaluation {
 public:
  Evaluation(const Names& names, const std::string& text) : names_(names), text_(text) {}

  std::optional<std::uint64_t> value(const Node& node) const {
    if (node.op == "number") return node.number;
    if (node.op == "name") return names_.value(node.name);
    if (node.op == "length") return names_.length(node.name);
    if (node.op == "text") return is_text(names_.text(node.name), node.text);
    const auto left = value(node.operands.front());
    if (node.op == "|") return left ? left : value(node.operands.back());
    if (!left) return std::nullopt;
    if (node.op == "not") return *left == 0 ? 1 : 0;
    if (node.op == "item") return is_text(names_.item(node.name, *left), node.text);
    if (node.op == "in") return names_.list_has(node.name, *left) ? 1 : 0;
    const auto right = value(node.operands.back());
    if (!right) return std::nullopt;
    return compute(node.op, *left, *right);
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw Error(ErrorCode::bad_input, names_.where() + ": '" + text_ + "' " + what + "; correct config.json");
  }

  static std::optional<std::uint64_t> is_text(const std::optional<std::string>& found, const std::string& text) {
    if (!found) return std::nullopt;
    return *found == text ? 1 : 0;
  }

  std::uint64_t compute(const std::string& op, std::uint64_t a, std::uint64_t b) const {
    if (op == "and") return a != 0 && b != 0 ? 1 : 0;
    if (op == "or") return a != 0 || b != 0 ? 1 : 0;
    if (op == "==") return a == b ? 1 : 0;
    if (op == "!=") return a != b ? 1 : 0;
    if (op == "<") return a < b ? 1 : 0;
    if (op == "<=") return a <= b ? 1 : 0;
    if (op == ">") return a > b ? 1 : 0;
    if (op == ">=") return a >= b ? 1 : 0;
    return arithmetic(op.front(), a, b);
  }

  std::uint64_t arithmetic(char op, std::uint64_t a, std::uint64_t b) const {
    const std::string numbers = std::to_string(a) + " " + op + " " + std::to_string(b);
    std::optional<std::uint64_t> result;
    if (op == '+') result = checked_add(a, b);
    if (op == '*') result = checked_multiply(a, b);
    if (op == '-') {
      if (b > a) fail("is below zero (" + numbers + ")");
      result = a - b;
    }
    if (op == '/' || op == '%') {
      if (b == 0) fail("divides by zero (" + numbers + ")");
      if (op == '/' && a % b != 0) fail("is no whole number (" + numbers + ")");
      result = op == '/' ? a / b : a % b;
    }
    if (!result || *result > largest) fail("is too large (" + numbers + ")");
    return *result;
  }

  const Names& names_;
  const std::string& text_;
};

void collect(const Node& node, std::vector<std::string>& names) {
  for (const Node& operand : node.operands) collect(operand, names);
  if (!node.name.empty() && std::find(names.begin(), names.end(), node.name) == names.end()) names.push_back(node.name);
}

}  // namespace

Expression Expression::parse(std::string_view text, const std::string& label) {
  if (text.size() > longest_text)
    throw Error(ErrorCode::bad_input, label + ": an expression of " + std::to_string(text.size()) + " characters; at most 1000");
  Expression expression;
  expression.text_ = text;
  expression.root_ = std::make_shared<const Node>(Parser(text, label).all());
  return expression;
}

std::optional<std::uint64_t> Expression::value(const Names& names) const {
  return Evaluation(names, text_).value(*root_);
}

std::vector<std::string> Expression::names() const {
  std::vector<std::string> found;
  collect(*root_, found);
  return found;
}

}  // namespace unshard
