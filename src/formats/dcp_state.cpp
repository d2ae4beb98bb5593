#include "formats/dcp_state.h"

#include <algorithm>
#include <array>
#include <map>
#include <optional>

#include "unshard/error.h"

namespace unshard {
namespace {

using Path = std::vector<std::string>;

constexpr std::array optimizer_names{"optim",
                                     "optimizer",
                                     "optimizers",
                                     "opt",
                                     "optim_state",
                                     "optim_state_dict",
                                     "opt_state",
                                     "optimizer_state",
                                     "optimizer_state_dict",
                                     "optimizer_states"};
constexpr std::array model_names{"model", "module", "state_dict", "model_state", "model_state_dict", "model_states"};
/// What optimizers keep of each parameter (torch/optim).
constexpr std::array moment_names{"exp_avg", "exp_avg_sq", "max_exp_avg_sq", "momentum_buffer", "step", "exp_inf", "square_avg", "sum"};

template <class Names>
bool is_one_of(std::string_view element, const Names& names) {
  return std::find(names.begin(), names.end(), element) != names.end();
}

std::string_view first_part(std::string_view key) {
  return key.substr(0, key.find('.'));
}

/// Megatron's chained optimizers: `chained_0.optimizer.state.exp_avg.…`.
bool is_chained(std::string_view key) {
  const std::string_view first = first_part(key);
  return first.starts_with("chained_") && first.size() < key.size() && names_optimizer(first_part(key.substr(first.size() + 1)));
}

bool is_optimizer(const Path& path) {
  if (names_optimizer(first_part(path.front())) && (path.size() > 1 || path.front().find('.') != std::string::npos)) return true;
  if (is_chained(path.front())) return true;
  if (std::any_of(path.begin(), path.end() - 1, names_optimizer)) return true;
  const bool has_state = std::find(path.begin(), path.end(), "state") != path.end();
  return has_state && is_one_of(path.back(), moment_names);
}

/// How many elements of a path lead to the dictionary of a model; none when no element says so.
std::optional<std::size_t> model_depth(const Path& path) {
  for (std::size_t i = 0; i + 1 < path.size(); ++i) {
    if (is_one_of(path[i], model_names)) return i + 1;
  }
  return std::nullopt;
}

std::string prefix_of(const Path& path, std::size_t depth) {
  std::string prefix;
  for (std::size_t i = 0; i < depth; ++i) prefix += path[i] + ".";
  return prefix;
}

class Sorter {
 public:
  explicit Sorter(const std::vector<const Path*>& paths) : paths_(paths) { kinds_.reasons.resize(paths.size()); }

  StateKinds run() {
    for (std::size_t i = 0; i < paths_.size(); ++i) sort_out(i);
    if (!models_.empty()) {
      choose(models_);
      set_aside(others_);
      set_aside(top_);
    } else if (has_weights_on_top() || others_.empty()) {
      if (!top_.empty()) kinds_.sections.emplace_back();
      set_aside(others_);
    } else {
      choose_others();
      set_aside(top_);
    }
    std::sort(kinds_.sections.begin(), kinds_.sections.end());
    return std::move(kinds_);
  }

 private:
  using Group = std::vector<std::size_t>;
  using Groups = std::map<std::string, Group>;

  void sort_out(std::size_t i) {
    const Path& path = *paths_[i];
    if (is_optimizer(path)) {
      kinds_.reasons[i] = "optimizer state";
    } else if (const auto depth = model_depth(path)) {
      models_[prefix_of(path, *depth)].push_back(i);
    } else if (path.size() > 1) {
      others_[path.front()].push_back(i);
    } else {
      top_.push_back(i);
    }
  }

  /// Counters and random states have short names of their own.
  [[nodiscard]] bool has_weights_on_top() const {
    return std::any_of(top_.begin(), top_.end(), [&](std::size_t i) { return paths_[i]->front().find('.') != std::string::npos; });
  }

  void choose(const Groups& groups) {
    for (const auto& [prefix, group] : groups) kinds_.sections.push_back(prefix);
  }

  /// Dictionaries of any name: what all paths of one have in common leads to it.
  void choose_others() {
    for (const auto& [key, group] : others_) {
      const Path& first = *paths_[group.front()];
      std::size_t depth = first.size() - 1;
      for (const std::size_t i : group) {
        const Path& path = *paths_[i];
        depth = std::min(depth, path.size() - 1);
        const auto differ = std::mismatch(first.begin(), first.begin() + static_cast<std::ptrdiff_t>(depth), path.begin()).first;
        depth = static_cast<std::size_t>(differ - first.begin());
      }
      kinds_.sections.push_back(prefix_of(first, depth));
    }
  }

  void set_aside(const Group& group) {
    for (const std::size_t i : group) kinds_.reasons[i] = "not among the model's weights";
  }
  void set_aside(const Groups& groups) {
    for (const auto& [key, group] : groups) set_aside(group);
  }

  const std::vector<const Path*>& paths_;
  StateKinds kinds_;
  Groups models_, others_;
  Group top_;
};

}  // namespace

bool names_optimizer(std::string_view element) {
  return is_one_of(element, optimizer_names);
}

StateKinds kinds_of_state(const std::vector<const std::vector<std::string>*>& paths) {
  return Sorter(paths).run();
}

}  // namespace unshard
