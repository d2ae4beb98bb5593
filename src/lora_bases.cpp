#include "lora_bases.h"

#include <algorithm>

#include "names.h"
#include "unshard/error.h"

namespace unshard {
namespace {

std::string last_two(const std::string& name) {
  const std::size_t last = name.rfind('.');
  const std::size_t before = last == std::string::npos || last == 0 ? std::string::npos : name.rfind('.', last - 1);
  return before == std::string::npos ? name : name.substr(before + 1);
}

}  // namespace

BaseTensors::BaseTensors(const MapContext& context, const std::set<TensorId>& parts) {
  for (TensorId id = 0; id < context.table.size(); ++id) {
    const TensorRow& row = context.table[id];
    if (parts.contains(id)) continue;
    const std::string clean = without_wrappers(row.name);
    const std::string name = row.origin == 0 ? without_peft(clean) : clean;
    const auto known = find(name);
    if (!known || (context.table[*known].origin != 0 && row.origin == 0)) put(name, id);
  }
}

void BaseTensors::put(const std::string& name, TensorId id) {
  ids_[name] = id;
  by_ending_[last_two(name)].insert(name);
}

const std::set<std::string>& BaseTensors::ending_like(const std::string& name) const {
  static const std::set<std::string> none;
  const auto found = by_ending_.find(last_two(name));
  return found == by_ending_.end() ? none : found->second;
}

std::optional<TensorId> BaseTensors::find(const std::string& name) const {
  const auto found = ids_.find(name);
  return found == ids_.end() ? std::nullopt : std::optional(found->second);
}

void BaseTensors::tie(const std::string& head, const std::string& embedding) {
  head_ = head;
  tied_embedding_ = embedding;
  const auto stored = find(embedding);
  if (find(head) || !stored) return;
  tied_head_ = head;
  put(head, *stored);
}

void BaseTensors::replace(const std::string& name, TensorId with) {
  put(name, with);
  if (name == tied_head_) tied_head_.clear();
  replacements_.insert(with);
}

std::vector<Made> names_by_rules(const MapContext& context, const std::string& name, const Shape& shape, const BaseTensors& bases) {
  const Scope scope = [&](const Captures& captures) { return context.names(captures); };
  for (const Rule& rule : context.family.rules) {
    if (!rule.whole_is_stored) continue;
    std::optional<std::vector<Made>> pieces;
    try {
      pieces = split_whole(rule, name, shape, scope);
    } catch (const Error&) {  // the shape is another: then it is not this tensor
      continue;
    }
    if (!pieces || pieces->empty()) continue;
    const bool all_there = std::all_of(pieces->begin(), pieces->end(), [&](const Made& piece) {
      const auto base = bases.find(piece.name);
      return base && context.table[*base].shape == piece.shape;
    });
    if (all_there) return std::move(*pieces);
  }
  return {};
}

std::optional<std::string> renamed_by_rules(const MapContext& context, const std::string& name, const Shape& shape,
                                            const BaseTensors& bases) {
  const Scope scope = [&](const Captures& captures) { return context.names(captures); };
  for (const Rule& rule : context.family.rules) {
    if (!rule.whole_is_stored || rule.axes || !rule.stacked.empty()) continue;
    const auto pieces = split_whole(rule, name, shape, scope);
    if (pieces && pieces->size() == 1 && pieces->front().add == 0 && bases.find(pieces->front().name)) return pieces->front().name;
  }
  return std::nullopt;
}

}  // namespace unshard
