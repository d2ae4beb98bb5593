// find_adapters: what the names of PEFT's tensors mean (peft src/peft/utils/save_and_load.py). In memory, and so in the shards of a
// training job, a name carries the adapter's name; in an adapter's file it does not:
//
//     base_model.model.<module>.lora_A[.<adapter>].weight          [rank, in]; lora_B [out, rank]
//     base_model.model.<module>.lora_B[.<adapter>].bias            [out]
//     base_model.model.<module>.lora_embedding_A[.<adapter>]       [rank, vocabulary]; lora_embedding_B [dim, rank]
//     base_model.model.<module>.lora_magnitude_vector[.<adapter>[.weight]]
//     base_model.model.<module>.modules_to_save.<adapter>.weight   in a file: <module>.weight
//     base_model.model.<module>.token_adapter.trainable_tokens_delta[.<adapter>]
//     base_model.model.<module>.base_layer.<…>                     what an adapted module wraps; several deep where pairs are nested
//     base_model.model.<module>.token_adapter.base_layer.<…>       an embedding of which rows are trained; a tied head has both again
//
// Megatron-Bridge (src/megatron/bridge/peft/utils.py, canonical_lora.py) and mcore-bridge (tuners/lora.py), behind whose modules the stacks
// of torch_dist stand in front of the matrices, [layers, experts, rank, in]:
//
//     <module>.adapter.linear_in.weight, linear_out.weight         A and B
//     <module>.adapter.adapter_<part>.linear_in.weight, …          of one projection of a fused layer
//     <module>.adapter.weight_magnitude                            DoRA
//     <module>.lora_A.<adapter>.weight                             as PEFT's
#include <algorithm>
#include <map>
#include <set>

#include "names.h"
#include "unshard/error.h"
#include "unshard/lora.h"
#include "unshard/mapping.h"

namespace unshard {
namespace {

enum class Part : std::uint8_t { a, b, bias, embedding_a, embedding_b, magnitude, saved, token_rows };

/// What a name says.
struct LoraName {
  Part part = Part::a;
  std::string module;
  std::string adapter;
  std::string rest;  ///< of a replacement: "weight"
  std::uint64_t depth = 0;
  std::string projection;
  bool of_bridge = false;
};

using Elements = std::vector<std::string_view>;

std::string joined(Elements::const_iterator begin, Elements::const_iterator end) {
  std::string name;
  for (auto element = begin; element != end; ++element) name += (name.empty() ? "" : ".") + std::string(*element);
  return name;
}

/// Without wrappers and PEFT's own prefix, which is there twice when a PeftModel was wrapped again.
Elements elements_of(std::string_view clean) {
  constexpr std::string_view prefix = "base_model.model.";
  while (clean.starts_with(prefix)) clean.remove_prefix(prefix.size());
  return split_name(clean);
}

std::optional<Part> part_of(const Elements& elements, std::size_t i) {
  const std::string_view element = elements[i];
  const std::string_view last = elements.back();
  if (element == "lora_A") return Part::a;
  if (element == "lora_B") return last == "bias" ? Part::bias : Part::b;
  if (element == "lora_embedding_A") return Part::embedding_a;
  if (element == "lora_embedding_B") return Part::embedding_b;
  if (element == "lora_magnitude_vector") return Part::magnitude;
  if (element == "modules_to_save") return Part::saved;
  if (element == "trainable_tokens_delta") return Part::token_rows;
  return std::nullopt;
}

/// A name of Megatron-Bridge; none when it is not one.
std::optional<LoraName> parse_bridge(const std::string& stored, const std::string& clean) {
  if (clean.ends_with(".adapter.weight_magnitude")) {
    throw Error(ErrorCode::unsupported, printable(stored) +
                                            ": a DoRA adapter of Megatron-Bridge, which this version can neither fold nor write; "
                                            "`merge --lora drop` leaves the adapter out");
  }
  const auto matrix = lora_matrix(clean);
  if (!matrix || !matrix->of_bridge) return std::nullopt;
  if (matrix->rest != "weight")
    throw Error(ErrorCode::unsupported, printable(stored) + ": is a part of an adapter that this version does not know (" +
                                            printable(matrix->rest) + "); `merge --lora drop` leaves the adapter out");
  LoraName name;
  name.part = matrix->is_a ? Part::a : Part::b;
  const Elements module = elements_of(matrix->module);
  name.module = joined(module.begin(), module.end());
  name.projection = matrix->projection;
  name.of_bridge = true;
  return name;
}

/// None when the name is not one of an adapter's own.
std::optional<LoraName> parse(const std::string& stored) {
  const std::string clean = without_wrappers(stored);
  if (auto name = parse_bridge(stored, clean)) return name;
  const Elements elements = elements_of(clean);
  for (std::size_t i = 0; i < elements.size(); ++i) {
    const auto part = part_of(elements, i);
    if (!part) continue;
    LoraName name;
    name.part = *part;
    auto module_end = elements.begin() + static_cast<std::ptrdiff_t>(i);
    auto rest = module_end + 1;
    auto end = elements.end();
    const bool ends_in_kind = *part == Part::a || *part == Part::b || *part == Part::bias || *part == Part::magnitude;
    if (ends_in_kind && end != rest && (*(end - 1) == "weight" || *(end - 1) == "bias")) --end;
    if (*part == Part::saved) {
      if (rest == end) return std::nullopt;
      name.adapter = *rest;
      name.rest = joined(rest + 1, end);
    } else {
      name.adapter = joined(rest, end);
    }
    if (*part == Part::token_rows && module_end != elements.begin() && *(module_end - 1) == "token_adapter") --module_end;
    for (; module_end != elements.begin() && *(module_end - 1) == "base_layer"; --module_end) ++name.depth;
    name.module = joined(elements.begin(), module_end);
    return name;
  }
  return std::nullopt;
}

class Finder {
 public:
  Finder(const std::vector<TensorRow>& table, bool only_adapters, bool of_megatron)
      : table_(table), only_adapters_(only_adapters), of_megatron_(of_megatron) {}

  void take(TensorId id) {
    const TensorRow& row = table_[id];
    const auto name = parse(row.name);
    if (!name) {
      if (only_adapters_) replace(id);
      return;
    }
    check_shape(row);
    const std::string of = adapter_name(name->adapter);
    if (name->part == Part::saved) {
      adapter(of).replacements.push_back({name->module + "." + name->rest, id});
    } else if (name->part == Part::token_rows) {
      adapter(of).token_rows.push_back({name->module + ".weight", id});
    } else {
      const Key key{of, name->module, name->depth, name->projection};
      Half& half = halves_[key];
      half.of_bridge = name->of_bridge;
      if (half.ids.empty()) order_.push_back(key);
      if (!half.ids.emplace(name->part, id).second)
        throw Error(ErrorCode::bad_input, printable(row.name) + ": is there twice; give one adapter");
      (void)adapter(of);
    }
  }

  std::vector<Adapter> finish() {
    std::map<std::string, std::size_t> first;  // of each module
    for (std::size_t i = 0; i < order_.size(); ++i) first.emplace(order_[i].module, i);
    std::stable_sort(order_.begin(), order_.end(),
                     [&](const Key& a, const Key& b) { return std::pair(first[a.module], a.depth) < std::pair(first[b.module], b.depth); });
    for (const Key& key : order_) adapter(key.adapter).pairs.push_back(pair_of(key, halves_.at(key)));
    if (names_.size() > 1) {
      throw Error(ErrorCode::bad_input,
                  name_list({names_.begin(), names_.end()}) + ": several adapters in one file; give the folder of one of them");
    }
    return std::move(adapters_);
  }

 private:
  struct Key {
    std::string adapter, module;
    std::uint64_t depth = 0;
    std::string projection;
    friend auto operator<=>(const Key&, const Key&) = default;
  };
  struct Half {
    std::map<Part, TensorId> ids;
    bool of_bridge = false;
  };

  /// A file holds one adapter, whether its names say which or not.
  std::string adapter_name(const std::string& in_name) {
    if (!only_adapters_) return in_name;
    if (!in_name.empty()) names_.insert(in_name);
    return "";
  }

  Adapter& adapter(const std::string& name) {
    const auto found = std::find_if(adapters_.begin(), adapters_.end(), [&](const Adapter& one) { return one.name == name; });
    if (found != adapters_.end()) return *found;
    adapters_.push_back({name, {}, {}, {}});
    return adapters_.back();
  }

  /// A plain tensor in an adapter's file stands for the base model's.
  void replace(TensorId id) {
    const TensorRow& row = table_[id];
    const std::string clean = without_wrappers(row.name);
    for (const std::string_view element : split_name(clean)) {
      if (element.starts_with("lora_") || element == "prompt_encoder" || element == "prompt_embeddings")
        throw Error(ErrorCode::unsupported, printable(row.name) + ": is a kind of adapter tensor that can't be folded");
    }
    check_shape(row);
    adapter("").replacements.push_back({without_peft(clean), id});
  }

  static void check_shape(const TensorRow& row) {
    if (volume(row.shape) > 0) return;
    throw Error(ErrorCode::bad_input, printable(row.name) + ": has shape " + to_string(row.shape) +
                                          " and no elements (a parameter that ZeRO-3 had not gathered?); save the adapter again");
  }

  [[nodiscard]] LoraPair pair_of(const Key& key, const Half& half) const {
    const auto find = [&](Part part) -> std::optional<TensorId> {
      const auto found = half.ids.find(part);
      return found == half.ids.end() ? std::nullopt : std::optional(found->second);
    };
    const TensorRow& some = table_[half.ids.begin()->second];
    LoraPair pair;
    pair.module = key.module;
    pair.depth = key.depth;
    pair.projection = key.projection;
    pair.of_bridge = half.of_bridge;
    pair.embedding = find(Part::embedding_a) || find(Part::embedding_b);
    const auto a = find(pair.embedding ? Part::embedding_a : Part::a), b = find(pair.embedding ? Part::embedding_b : Part::b);
    if (!a || !b) {
      throw Error(ErrorCode::bad_input, printable(some.name) + ": the other half of this pair (" +
                                            (a   ? "lora_B"
                                             : b ? "lora_A"
                                                 : "lora_A and lora_B") +
                                            " of " + printable(key.module) + ") is missing; save the adapter again");
    }
    if (pair.embedding && (find(Part::a) || find(Part::b)))
      throw Error(ErrorCode::bad_input, printable(some.name) + ": the module has two kinds of pairs");
    pair.a = *a;
    pair.b = *b;
    pair.bias = find(Part::bias);
    pair.magnitude = find(Part::magnitude);
    check_pair(pair);
    pair.rank = extent_from_end(table_[pair.a].shape, 2);
    if (of_megatron_) pair.stack = stack_of(table_[pair.a], table_[pair.b]);
    return pair;
  }

  static std::uint64_t extent_from_end(const Shape& shape, std::size_t number) { return shape[shape.size() - number]; }

  /// What stands in front of the matrices: of both the same, or what all share is stored once.
  static Shape stack_of(const TensorRow& a, const TensorRow& b) {
    const auto in_front = [](const TensorRow& row) { return Shape(std::span(row.shape.begin(), row.shape.size() - 2)); };
    const Shape of_a = in_front(a), of_b = in_front(b);
    const Shape &shorter = of_a.size() < of_b.size() ? of_a : of_b, &longer = of_a.size() < of_b.size() ? of_b : of_a;
    if (longer.size() <= 2 && std::equal(shorter.begin(), shorter.end(), longer.begin())) return longer;
    throw Error(ErrorCode::bad_input, printable(a.name) + ": shape " + to_string(a.shape) + " and " + printable(b.name) + ": shape " +
                                          to_string(b.shape) + " are no stacks of matrices that belong together");
  }

  void check_pair(const LoraPair& pair) const {
    const TensorRow &a = table_[pair.a], &b = table_[pair.b];
    if (!of_megatron_ && (a.shape.size() > 2 || b.shape.size() > 2)) {
      throw Error(ErrorCode::unsupported,
                  printable(a.name) + ": shape " + to_string(a.shape) + ": adapters of convolutions are not supported; fold it with PEFT");
    }
    for (const TensorRow* row : {&a, &b}) {
      if (row->shape.size() < 2) throw Error(ErrorCode::bad_input, printable(row->name) + ": is no matrix but " + to_string(row->shape));
    }
    if (extent_from_end(a.shape, 2) != extent_from_end(b.shape, 1)) {
      throw Error(ErrorCode::bad_input, printable(a.name) + ": shape " + to_string(a.shape) + " and " + printable(b.name) + ": shape " +
                                            to_string(b.shape) + " have different ranks; are they of one adapter?");
    }
    for (const auto id : {std::optional(pair.a), std::optional(pair.b), pair.bias, pair.magnitude}) {
      if (id && !info(table_[*id].dtype).castable)
        throw Error(ErrorCode::unsupported,
                    printable(table_[*id].name) + ": " + std::string(info(table_[*id].dtype).name) + " is no type that can be multiplied");
    }
  }

  const std::vector<TensorRow>& table_;
  bool only_adapters_, of_megatron_;
  std::set<std::string> names_;  ///< of an adapter's file
  std::vector<Adapter> adapters_;
  std::map<Key, Half> halves_;
  std::vector<Key> order_;
};

}  // namespace

std::vector<Adapter> find_adapters(const std::vector<TensorRow>& table, TensorId first, TensorId end, bool only_adapters,
                                   bool of_megatron) {
  Finder finder(table, only_adapters, of_megatron);
  for (TensorId id = first; id < end; ++id) finder.take(id);
  return finder.finish();
}

}  // namespace unshard
