#include "combine_adapters.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "unshard/error.h"

namespace unshard {
namespace {

constexpr const char* prefix = "base_model.model.";

/// A pair of one adapter, and what its update is multiplied by.
struct Part {
  const LoraPair* pair = nullptr;
  double factor = 1;
};

class Combination {
 public:
  Combination(const std::vector<TensorRow>& table, const std::vector<AdapterUse>& uses) : table_(table), uses_(uses) {}

  AdapterOutput make() {
    for (const AdapterUse& use : uses_) take(use);
    for (const std::string& module : order_) add(module, parts_.at(module));
    for (const AdapterUse& use : uses_)
      for (const Replacement& one : use.adapter.replacements) add_whole(use, one);
    set_ranks();
    facts_.target_modules = target_modules(modules_, base_modules_in(table_));
    output_.config = adapter_config_text(facts_);
    return std::move(output_);
  }

 private:
  void take(const AdapterUse& use) {
    for (const LoraPair& pair : use.adapter.pairs) {
      const std::string& name = table_[pair.a].name;
      const auto refuse = [&](const std::string& what) {
        throw Error(ErrorCode::unsupported,
                    printable(name) + ": " + what + " can't become part of one combined adapter; fold the adapters into a model");
      };
      if (pair.magnitude) refuse("a DoRA pair");
      if (pair.depth > 0 || !use.config.target_parameters.empty()) refuse("a pair of bare parameters (target_parameters)");
      if (pair.bias && uses_.size() > 1) refuse("a pair with a bias (lora_bias)");
      std::vector<Part>& parts = parts_[pair.module];
      if (parts.empty()) order_.push_back(pair.module);
      parts.push_back({&pair, use.weight * scale_of(use.config, pair.module, pair.rank)});
    }
    if (!use.adapter.token_rows.empty())
      throw Error(ErrorCode::unsupported, printable(table_[use.adapter.token_rows.front().tensor].name) +
                                              ": trained tokens can't become part of one combined adapter; fold the adapters into a model");
    if (facts_.base_model.empty()) facts_.base_model = use.config.base_model;
    if (facts_.task_type.empty()) facts_.task_type = use.config.task_type;
    facts_.inputs_first = facts_.inputs_first || use.config.inputs_first;
    if (use.config.bias != "none") facts_.bias = use.config.bias;
  }

  void add(const std::string& module, const std::vector<Part>& parts) {
    const LoraPair& first = *parts.front().pair;
    const std::uint64_t in = table_[first.a].shape[1], out = table_[first.b].shape[0];
    std::uint64_t rank = 0;
    DType a_type = table_[first.a].dtype, b_type = table_[first.b].dtype;
    bool exact = true;  // a power of two changes no digit
    for (const Part& part : parts) {
      const TensorRow &a = table_[part.pair->a], &b = table_[part.pair->b];
      if (a.shape[1] != in || b.shape[0] != out || part.pair->embedding != first.embedding) {
        throw Error(ErrorCode::bad_input, printable(a.name) + ": the adapters have different shapes for " + printable(module) + ", [" +
                                              std::to_string(out) + ", " + std::to_string(in) + "] and [" + std::to_string(b.shape[0]) +
                                              ", " + std::to_string(a.shape[1]) + "]; are they of one base model?");
      }
      if (a.dtype != a_type) a_type = DType::f32;
      int exponent = 0;
      exact = exact && b.dtype == b_type && std::abs(std::frexp(part.factor, &exponent)) == 0.5 && std::abs(exponent) < 8;
      rank += part.pair->rank;
    }
    if (!exact) b_type = DType::f32;
    Target a{prefix + module + (first.embedding ? ".lora_embedding_A" : ".lora_A.weight"), a_type, {rank, in}, {}, {}};
    Target b{prefix + module + (first.embedding ? ".lora_embedding_B" : ".lora_B.weight"), b_type, {out, rank}, {}, {}};
    Computation scaled;
    std::uint64_t at = 0;
    for (const Part& part : parts) {
      Term rows = copy_of(part.pair->a, table_[part.pair->a].shape), columns = copy_of(part.pair->b, table_[part.pair->b].shape);
      rows.target_start[0] = at;
      columns.target_start[1] = at;
      a.terms.push_back(std::move(rows));
      b.terms.push_back(std::move(columns));
      at += part.pair->rank;
      scaled.column_factors.insert(scaled.column_factors.end(), part.pair->rank, static_cast<float>(part.factor));
    }
    b.computation = std::make_shared<const Computation>(scaled);
    output_.targets.push_back(std::move(a));
    output_.targets.push_back(std::move(b));
    if (first.bias) add_bias(module, parts.front());
    modules_.insert(module);
    ranks_[module] = rank;
  }

  /// Of a single adapter.
  void add_bias(const std::string& module, const Part& part) {
    const TensorRow& row = table_[*part.pair->bias];
    Target bias{prefix + module + ".lora_B.bias", DType::f32, row.shape, {copy_of(*part.pair->bias, row.shape)}, {}};
    Computation scaled;
    scaled.row_factors = {static_cast<float>(part.factor)};
    bias.computation = std::make_shared<const Computation>(scaled);
    output_.targets.push_back(std::move(bias));
    facts_.has_bias = true;
  }

  void add_whole(const AdapterUse& use, const Replacement& one) {
    const TensorRow& row = table_[one.tensor];
    const std::string module = one.name.substr(0, one.name.rfind('.'));
    std::string name = one.name;
    if (use.config.bias != "none" && one.name.ends_with(".bias")) {
      if (modules_.contains(module)) name = module + ".base_layer.bias";
    } else if (std::find(facts_.modules_to_save.begin(), facts_.modules_to_save.end(), module) == facts_.modules_to_save.end()) {
      facts_.modules_to_save.push_back(module);
    }
    output_.targets.push_back({prefix + name, row.dtype, row.shape, {copy_of(one.tensor, row.shape)}, {}});
  }

  void set_ranks() {
    std::map<std::uint64_t, std::size_t> counts;
    for (const auto& [module, rank] : ranks_) ++counts[rank];
    for (const auto& [rank, count] : counts)
      if (facts_.rank == 0 || count >= counts[facts_.rank]) facts_.rank = rank;
    if (facts_.rank == 0) facts_.rank = 1;
    facts_.alpha = static_cast<double>(facts_.rank);  // so the scale is 1
    for (const auto& [module, rank] : ranks_) {
      if (rank == facts_.rank) continue;
      facts_.rank_pattern.emplace_back(module, static_cast<double>(rank));
      facts_.alpha_pattern.emplace_back(module, static_cast<double>(rank));
    }
  }

  const std::vector<TensorRow>& table_;
  const std::vector<AdapterUse>& uses_;
  AdapterOutput output_;
  AdapterFacts facts_;
  std::map<std::string, std::vector<Part>> parts_;
  std::vector<std::string> order_;
  std::set<std::string> modules_;
  std::map<std::string, std::uint64_t> ranks_;
};

}  // namespace

AdapterOutput combine_adapters(const std::vector<TensorRow>& table, const std::vector<AdapterUse>& uses) {
  return Combination(table, uses).make();
}

}  // namespace unshard
