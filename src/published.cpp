// Family rules at work: each stored tensor becomes one or several targets under published names, or pieces of one.
#include <algorithm>
#include <tuple>
#include <unordered_set>
#include <utility>

#include "mapping_steps.h"
#include "names.h"
#include "unshard/error.h"

namespace unshard {
namespace {

/// The tensors of one origin, by clean name.
class Publisher {
 public:
  Publisher(const MapContext& context, const std::vector<NamedTensor>& tensors, std::uint8_t origin)
      : context_(context), tensors_(tensors), origin_(origin) {
    for (const NamedTensor& tensor : tensors) {
      if (row(tensor.id).origin == origin) ids_.emplace(tensor.name, tensor.id);
    }
  }

  void run(Published& published, std::vector<std::string>& unmapped) {
    for (const NamedTensor& tensor : tensors_) {
      if (row(tensor.id).origin != origin_) continue;
      if (!publish(tensor, published)) unmapped.push_back(row(tensor.id).name);
    }
  }

 private:
  [[nodiscard]] const TensorRow& row(TensorId id) const { return context_.table[id]; }

  /// False when names must be translated and nothing translates this one.
  bool publish(const NamedTensor& tensor, Published& published) {
    const Scope scope = [this](const Captures& captures) { return context_.names(captures); };
    const bool translate = !context_.options.names_are_published && origin_ == 0;
    for (const Rule& rule : translate ? context_.family.megatron : context_.family.rules) {
      if (rule.only_for_like) continue;
      refuse_by_rule(rule, tensor.name, scope);
      if (rule.whole_is_stored) {
        auto pieces = split_whole(rule, tensor.name, row(tensor.id).shape, scope);
        if (!pieces) continue;
        for (const Made& piece : *pieces) add(target_of(piece, {tensor.id}), published);
        return true;
      }
      const auto whole = whole_of(rule, tensor.name);
      if (!whole) continue;
      if (joined_.insert(*whole).second) join(rule, *whole, tensor, scope, published);
      return true;
    }
    const bool is_published = context_.options.names_are_published || origin_ != 0 || is_expected(tensor.name);
    if (is_published) add({tensor.name, row(tensor.id).dtype, row(tensor.id).shape, {copy_of(tensor.id, row(tensor.id).shape)}}, published);
    return is_published;
  }

  void join(const Rule& rule, const std::string& name, const NamedTensor& piece, const Scope& scope, Published& published) {
    const Lookup lookup = [this](const std::string& other) -> std::optional<Shape> {
      const auto found = ids_.find(other);
      if (found == ids_.end()) return std::nullopt;
      return row(found->second).shape;
    };
    const auto made = join_pieces(rule, name, std::nullopt, lookup, scope);
    if (!made)
      throw Error(ErrorCode::bad_input,
                  printable(row(piece.id).name) + ": belongs to " + printable(name) + ", whose first piece is missing");
    std::vector<TensorId> ids;
    for (const std::string& from : made->from) ids.push_back(ids_.at(from));
    for (const TensorId id : ids) {
      if (row(id).dtype == row(ids.front()).dtype) continue;
      throw Error(ErrorCode::bad_input, printable(row(id).name) + ": " + std::string(info(row(id).dtype).name) + ", but " +
                                            printable(row(ids.front()).name) + " is " + std::string(info(row(ids.front()).dtype).name) +
                                            "; both belong to " + printable(name));
    }
    add(target_of(*made, ids), published);
  }

  [[nodiscard]] Target target_of(const Made& made, const std::vector<TensorId>& ids) const {
    Target target{made.name, row(ids.front()).dtype, made.shape, made.terms};
    for (Term& term : target.terms) term.source = ids[term.source];
    if (made.add == 0) return target;
    if (!info(target.dtype).castable) {
      throw Error(ErrorCode::bad_input, printable(row(ids.front()).name) + ": is " + std::string(info(target.dtype).name) +
                                            ", but a floating type is expected, to which " + std::to_string(static_cast<int>(made.add)) +
                                            " is added");
    }
    Computation computation;
    computation.constant = made.add;
    target.computation = std::make_shared<const Computation>(std::move(computation));
    return target;
  }

  [[nodiscard]] bool is_expected(const std::string& name) const {
    return std::any_of(context_.family.tensors.begin(), context_.family.tensors.end(),
                       [&](const TensorSpec& spec) { return spec.name.match(name).has_value(); });
  }

  void add(Target target, Published& published) const {
    if (const Target* other = published.find(target.name)) {
      if (origin_ != 0) return;
      refuse_collision(target, *other);
    }
    published.add(std::move(target), origin_ != 0);
  }

  [[noreturn]] void refuse_collision(const Target& target, const Target& other) const {
    const std::string first = printable(row(other.terms.front().source).name);
    const std::string second = printable(row(target.terms.front().source).name);
    throw Error(ErrorCode::bad_input, printable(target.name) + ": two stored tensors would get this name, " + first + " and " + second +
                                          "; leave one out with --drop, or name them with --custom-mapping");
  }

  const MapContext& context_;
  const std::vector<NamedTensor>& tensors_;
  std::uint8_t origin_;
  std::unordered_map<std::string, TensorId> ids_;
  std::unordered_set<std::string> joined_;
};

}  // namespace

const Target* Published::find(const std::string& name) const {
  const auto found = by_name.find(name);
  return found == by_name.end() ? nullptr : &targets[found->second];
}

void Published::add(Target target, bool is_filled) {
  by_name.emplace(target.name, targets.size());
  targets.push_back(std::move(target));
  filled.push_back(is_filled);
}

void Published::remove_if(const std::vector<bool>& unwanted) {
  Published kept;
  for (std::size_t i = 0; i < targets.size(); ++i) {
    if (!unwanted[i]) kept.add(std::move(targets[i]), filled[i]);
  }
  *this = std::move(kept);
}

namespace {

/// The order in which transformers would save translated tensors: that of the family's table, layer by layer.
Published in_model_order(const MapContext& context, Published published) {
  struct Place {
    std::size_t group = 1;  ///< before, in and behind the layers
    std::uint64_t layer = 0;
    std::size_t line = 0;
    std::size_t target = 0;
  };
  const std::vector<TensorSpec>& lines = context.family.tensors;
  const auto layered = [](const TensorSpec& spec) { return !spec.name.variables().empty(); };
  const auto first = static_cast<std::size_t>(std::find_if(lines.begin(), lines.end(), layered) - lines.begin());
  std::vector<Place> places;
  for (std::size_t i = 0; i < published.targets.size(); ++i) {
    Place place{2, 0, lines.size(), i};
    for (std::size_t line = 0; line < lines.size(); ++line) {
      const auto captures = lines[line].name.match(published.targets[i].name);
      if (!captures) continue;
      place = {line < first ? std::size_t{0} : layered(lines[line]) ? std::size_t{1} : std::size_t{2}, 0, line, i};
      if (!captures->empty()) place.layer = number_of(captures->front().second);
      break;
    }
    places.push_back(place);
  }
  std::stable_sort(places.begin(), places.end(), [&](const Place& a, const Place& b) {
    if (context.family.sorted) return natural_less(published.targets[a.target].name, published.targets[b.target].name);
    if (std::tie(a.group, a.layer, a.line) != std::tie(b.group, b.layer, b.line))
      return std::tie(a.group, a.layer, a.line) < std::tie(b.group, b.layer, b.line);
    return natural_less(published.targets[a.target].name, published.targets[b.target].name);
  });
  Published ordered;
  for (const Place& place : places) ordered.add(std::move(published.targets[place.target]), published.filled[place.target]);
  return ordered;
}

}  // namespace

Published publish_names(const MapContext& context, const NamedTensors& named) {
  Published published;
  std::vector<std::string> unmapped;
  Publisher(context, named.tensors, 0).run(published, unmapped);
  if (!unmapped.empty()) {
    throw Error(ErrorCode::bad_input, name_list(unmapped) + ": no rule of the family '" + printable(context.family.name) +
                                          "' maps this; name it with --custom-mapping or leave it out with --drop");
  }
  if (!context.options.names_are_published) published = in_model_order(context, std::move(published));
  Publisher(context, named.tensors, 1).run(published, unmapped);
  return published;
}

}  // namespace unshard
