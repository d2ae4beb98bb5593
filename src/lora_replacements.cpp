// A full copy is stored under the name that the model in training has for it, which need not be the one in the files of the base: classes
// of pictures and text are called otherwise since transformers 4.52, and an adapter of an inner model has lost the beginning of its names.
// A copy that finds no tensor to stand for would be written beside it, and loaders would go on taking the old one. So it is looked for
// under its own name, with the prefix of the pairs, by the family's rules, and last by the longest ending that a name of the base shares
// with it.
#include "lora_replacements.h"

#include <algorithm>
#include <vector>

#include "names.h"
#include "unshard/error.h"

namespace unshard {
namespace {

class Search {
 public:
  Search(const MapContext& context, const AdapterConfig& config, const BaseTensors& bases, const Replacement& one)
      : context_(context), config_(config), bases_(bases), one_(one), elements_(split_name(one.name)) {}

  /// By the ending. Only the module that modules_to_save names may have moved; where none is named, at least the last two elements are the
  /// same.
  std::optional<std::string> run() const {
    const std::size_t module = first_of_module();
    for (std::size_t first = 0; first <= std::min(module, last_two()); ++first) {
      const std::vector<std::string> found = ending_like(first);
      if (found.empty()) continue;
      const bool is_that = found.size() == 1 && is_alike(found.front()) && (first > 0 || is_of_language_model(found.front()));
      if (!is_that) refuse(found);
      return found.front();
    }
    if (module == 0) return std::nullopt;  // no prefix that could be another
    if (const std::vector<std::string> found = ending_like(last_two()); !found.empty()) refuse(found);
    return std::nullopt;
  }

 private:
  /// Where in the name the module begins that modules_to_save lists: the first whose name ends like an entry, as PEFT looks for it.
  [[nodiscard]] std::size_t first_of_module() const {
    for (std::size_t end = 1; end < elements_.size(); ++end) {
      const std::string_view name(one_.name.data(),
                                  static_cast<std::size_t>(elements_[end - 1].data() + elements_[end - 1].size() - one_.name.data()));
      for (const std::string& listed : config_.modules_to_save) {
        const auto length = static_cast<std::size_t>(std::count(listed.begin(), listed.end(), '.')) + 1;
        if (!listed.empty() && name.ends_with(listed) && length <= end) return end - length;
      }
    }
    return elements_.size();
  }

  [[nodiscard]] std::size_t last_two() const { return elements_.size() < 2 ? 0 : elements_.size() - 2; }
  [[nodiscard]] std::string_view from_element(std::size_t first) const {
    return std::string_view(one_.name).substr(static_cast<std::size_t>(elements_[first].data() - one_.name.data()));
  }

  /// Whether what the base has in front of the copy's name stands in front of an embedding too, as before all of a model; not
  /// `audio.classifier` for a new `classifier`.
  [[nodiscard]] bool is_of_language_model(const std::string& name) const {
    const std::string prefix = name.substr(0, name.size() - one_.name.size());
    for (const std::string_view embedding : embedding_endings) {
      const std::set<std::string>& names = bases_.ending_like(std::string(embedding));
      if (std::any_of(names.begin(), names.end(), [&](const std::string& one) { return one.starts_with(prefix); })) return true;
    }
    return false;
  }

  /// Names of the base that end with the elements from `first`, of which there are at least two where the name has them.
  [[nodiscard]] std::vector<std::string> ending_like(std::size_t first) const {
    const std::string_view tail = from_element(first);
    std::vector<std::string> found;
    for (const std::string& name : bases_.ending_like(one_.name))
      if (ends_with_element(name, tail)) found.push_back(name);
    return found;
  }

  /// The same shape, but for the rows: those of an embedding may be more, and of trained rows there are some.
  [[nodiscard]] bool is_alike(const std::string& name) const {
    const Shape &own = context_.table[one_.tensor].shape, &of_base = context_.table[*bases_.find(name)].shape;
    return own.size() == of_base.size() && (own.empty() || std::equal(own.begin() + 1, own.end(), of_base.begin() + 1));
  }

  [[noreturn]] void refuse(const std::vector<std::string>& found) const {
    throw Error(ErrorCode::unsupported,
                printable(context_.table[one_.tensor].name) + ": the base has no " + printable(one_.name) + ", but " + name_list(found) +
                    ", for which this full copy may stand or not; rename it in the adapter's file to what the base has");
  }

  const MapContext& context_;
  const AdapterConfig& config_;
  const BaseTensors& bases_;
  const Replacement& one_;
  std::vector<std::string_view> elements_;
};

}  // namespace

std::optional<std::string> replaced_name(const MapContext& context, const AdapterConfig& config, const BaseTensors& bases,
                                         const ModuleNames& names, const Replacement& one) {
  for (const std::string& name : {names.renamed(one.name), one.name}) {
    if (bases.find(name)) return name;
    if (auto by_rules = renamed_by_rules(context, name, context.table[one.tensor].shape, bases)) return by_rules;
  }
  return Search(context, config, bases, one).run();
}

std::vector<Replacement> own_rows(const std::vector<TensorRow>& table, const AdapterUse& use,
                                  const std::vector<std::pair<std::string, std::string>>& ties) {
  const auto& lists = use.config.token_rows;
  const bool by_name = std::any_of(lists.begin(), lists.end(), [](const auto& list) { return !list.first.empty(); });
  const auto is_own = [&](const Replacement& one) {
    const std::string_view module = std::string_view(one.name).substr(0, one.name.rfind('.'));
    if (by_name) return std::any_of(lists.begin(), lists.end(), [&](const auto& list) { return ends_with_element(module, list.first); });
    return std::none_of(ties.begin(), ties.end(), [&](const auto& tie) {  // the head may have another prefix in the files
      const std::size_t module_end = tie.first.rfind('.'), before = tie.first.rfind('.', module_end - 1);
      return ends_with_element(one.name, before == std::string::npos ? tie.first : tie.first.substr(before + 1));
    });
  };
  std::vector<Replacement> own, others;
  for (const Replacement& one : use.adapter.token_rows) (is_own(one) ? own : others).push_back(one);
  const auto is_repeated = [&](const Replacement& one) {
    return std::any_of(own.begin(), own.end(),
                       [&](const Replacement& other) { return table[other.tensor].shape == table[one.tensor].shape; });
  };
  std::erase_if(others, is_repeated);
  own.insert(own.end(), others.begin(), others.end());
  return own;
}

}  // namespace unshard
