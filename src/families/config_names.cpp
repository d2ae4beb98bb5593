// What the names in a family's expressions stand for: numbers of the tensor's name, the family's own sizes, config.json.

#include <algorithm>
#include <charconv>

#include "families/families.h"
#include "unshard/error.h"

namespace unshard {
namespace {

class ConfigNames : public Names {
 public:
  ConfigNames(const ModelConfig& config, const Family& family, Captures captures)
      : config_(config), family_(family), captures_(std::move(captures)) {}

  [[nodiscard]] std::optional<std::uint64_t> value(const std::string& name) const override {
    if (const std::string* digits = find_capture(captures_, name)) {
      std::uint64_t number = 0;
      const auto [end, error] = std::from_chars(digits->data(), digits->data() + digits->size(), number);
      if (error == std::errc{} && end == digits->data() + digits->size()) return number;
    }
    // Inside its own definition a name means the key of config.json: "head_dim | hidden_size / num_attention_heads".
    const bool defining = std::find(active_.begin(), active_.end(), name) != active_.end();
    if (const auto size = family_.sizes.find(name); size != family_.sizes.end() && !defining) {
      active_.push_back(name);
      const auto found = size->second.value(*this);
      active_.pop_back();
      return found;
    }
    if (const auto flag = config_.flag(name)) return *flag ? 1 : 0;
    return config_.number(name);
  }

  [[nodiscard]] bool list_has(const std::string& name, std::uint64_t item) const override {
    const std::vector<std::uint64_t> items = config_.numbers(name);
    return std::find(items.begin(), items.end(), item) != items.end();
  }

  [[nodiscard]] std::optional<std::string> text(const std::string& name) const override { return config_.text(name); }
  [[nodiscard]] std::optional<std::string> item(const std::string& name, std::uint64_t index) const override {
    return config_.item(name, index);
  }
  [[nodiscard]] std::optional<std::uint64_t> length(const std::string& name) const override { return config_.length(name); }

  [[nodiscard]] std::string where() const override { return printable(config_.path(), 4096); }

 private:
  const ModelConfig& config_;
  const Family& family_;
  Captures captures_;
  mutable std::vector<std::string> active_;
};

}  // namespace

std::unique_ptr<Names> names_in(const ModelConfig& config, const Family& family, Captures captures) {
  return std::make_unique<ConfigNames>(config, family, std::move(captures));
}

}  // namespace unshard
