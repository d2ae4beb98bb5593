// --like: the targets get the names and layouts of a given folder, by the family's rules in either direction.
#include <algorithm>
#include <set>

#include "mapping_steps.h"
#include "names.h"
#include "unshard/error.h"

namespace unshard {
namespace {

/// `inner` fills tensor P from a stored one; `outer` fills a target from P. None unless `outer` takes all of P with one axis per dimension.
std::optional<Term> compose(const Term& outer, const Shape& shape, const Term& inner) {
  std::vector<const Axis*> by_dim(shape.size(), nullptr);
  for (const Axis& axis : outer.axes) {
    if (by_dim[axis.source_dim] != nullptr || axis.source_step != 1 || axis.extent != shape[axis.source_dim]) return std::nullopt;
    by_dim[axis.source_dim] = &axis;
  }
  Term term{inner.source, inner.source_start, outer.target_start, {}};
  for (std::size_t d = 0; d < shape.size(); ++d) {
    if (outer.source_start[d] != 0 || (by_dim[d] == nullptr && shape[d] != 1)) return std::nullopt;
    if (by_dim[d] != nullptr) term.target_start[by_dim[d]->target_dim] += inner.target_start[d] * by_dim[d]->target_step;
  }
  for (const Axis& axis : inner.axes) {
    const Axis* to = by_dim[axis.target_dim];
    if (to == nullptr) {
      if (axis.extent != 1) return std::nullopt;
      continue;
    }
    term.axes.push_back({axis.extent, axis.source_dim, to->target_dim, axis.source_step, axis.target_step * to->target_step});
  }
  return term;
}

/// The whole of a target that is a plain copy, seen as the identity: then the outer term alone says it (any selection and order of axes).
bool is_copy(const Target& target, const std::vector<TensorRow>& table) {
  return target.terms.size() == 1 && table[target.terms.front().source].shape == target.shape &&
         target.terms.front() == copy_of(target.terms.front().source, target.shape);
}

class Follower {
 public:
  Follower(const MapContext& context, const Published& published)
      : context_(context), published_(published), used_(published.targets.size(), false) {
    for (const auto& [head, embedding] : context.family.ties) tied_names_.insert(head);
  }

  Published run() {
    for (const TensorRow& row : context_.options.like->tensors) {
      auto found = find(row);
      if (found) {
        places_.emplace_back(*std::min_element(sources_.begin(), sources_.end()), made_.targets.size());
        const bool filled = std::all_of(sources_.begin(), sources_.end(), [&](std::size_t i) { return published_.filled[i]; });
        for (const std::size_t i : sources_) used_[i] = true;
        made_.add(std::move(*found), filled);
      } else if (!may_be_missing(row.name)) {
        missing_.push_back(row.name);
      }
    }
    refuse_unmatched();
    return in_published_order();
  }

  [[nodiscard]] LikeParts take_parts() { return std::move(parts_); }

 private:
  /// The target that the folder's tensor asks for; the published ones that it takes are then in sources_.
  std::optional<Target> find(const TensorRow& row) {
    sources_.clear();
    if (const Target* same = published_.find(row.name); same != nullptr && same->shape == row.shape) {
      sources_ = {published_.by_name.at(row.name)};
      return *same;
    }
    const Lookup lookup = [this](const std::string& name) -> std::optional<Shape> {
      const Target* target = published_.find(name);
      return target == nullptr ? std::nullopt : std::optional<Shape>(target->shape);
    };
    const Scope scope = [this](const Captures& captures) { return context_.names(captures); };
    for (const Rule& rule : context_.family.rules) {
      try {
        for (const bool joined : {false, true}) {
          const auto made = joined ? join_pieces(rule, row.name, row.shape, lookup, scope) : take_piece(rule, row.name, lookup, scope);
          if (made && made->shape == row.shape) {
            if (auto target = put_together(*made)) return target;
          }
        }
      } catch (const Error& error) {
        reasons_.push_back(error.what());
      }
    }
    return std::nullopt;
  }

  std::optional<Target> put_together(const Made& made) {
    Target target{made.name, DType::f32, made.shape, {}};
    sources_.clear();
    std::vector<LikePart> parts;
    for (const Term& outer : made.terms) {
      const std::size_t place = published_.by_name.at(made.from[outer.source]);
      const Target& source = published_.targets[place];
      sources_.push_back(place);
      target.dtype = source.dtype;
      if (source.computation) {  // of every element alike, but what else a rule does to it is not known
        if (made.terms.size() != 1 || !(outer == copy_of(outer.source, source.shape))) return std::nullopt;
        target.computation = source.computation;
      }
      parts.push_back({source.name, source.shape, outer});
      for (const Term& inner : source.terms) {
        std::optional<Term> term = outer;
        if (is_copy(source, context_.table)) {
          term->source = inner.source;
        } else {
          term = compose(outer, source.shape, inner);
        }
        if (!term) return std::nullopt;
        target.terms.push_back(std::move(*term));
      }
    }
    parts_[made.name] = std::move(parts);
    return target;
  }

  [[nodiscard]] bool may_be_missing(const std::string& name) const {
    if (tied_names_.contains(name) && find_tie(context_, published_).tied) return true;
    return any_glob_matches(context_.options.allow_missing, name);
  }

  void refuse_unmatched() const {
    std::vector<std::string> left;
    for (std::size_t i = 0; i < published_.targets.size(); ++i) {
      if (!used_[i] && !published_.filled[i] && !tied_names_.contains(published_.targets[i].name))
        left.push_back(published_.targets[i].name);
    }
    if (missing_.empty() && left.empty()) return;
    std::string text;
    if (!missing_.empty())
      text = name_list(missing_) + ": in the --like folder " + printable(context_.options.like->path, 4096) + ", missing in the checkpoint";
    if (!left.empty())
      text += (text.empty() ? "" : "; ") + name_list(left) + ": in the checkpoint, not in the --like folder " +
              printable(context_.options.like->path, 4096);
    if (!reasons_.empty()) text += " (" + reasons_.front() + ")";
    throw Error(ErrorCode::bad_input, text + "; give the folder of the same model, or use --allow-missing, --fill-missing-from or --drop");
  }

  /// Each where the first of its published tensors stood; an untied head, which the folder may lack, stays too.
  Published in_published_order() {
    for (std::size_t i = 0; i < published_.targets.size(); ++i) {
      if (used_[i] || !tied_names_.contains(published_.targets[i].name)) continue;
      places_.emplace_back(i, made_.targets.size());
      made_.add(published_.targets[i], published_.filled[i]);
    }
    std::stable_sort(places_.begin(), places_.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
    Published ordered;
    for (const auto& [place, number] : places_) ordered.add(std::move(made_.targets[number]), made_.filled[number]);
    return ordered;
  }

  const MapContext& context_;
  const Published& published_;
  std::vector<bool> used_;
  std::set<std::string, std::less<>> tied_names_;
  std::vector<std::size_t> sources_;
  LikeParts parts_;
  Published made_;
  std::vector<std::pair<std::size_t, std::size_t>> places_;  ///< published place, number in made_
  std::vector<std::string> missing_, reasons_;
};

}  // namespace

LikeParts follow_like(const MapContext& context, Published& published) {
  Follower follower(context, published);
  published = follower.run();
  return follower.take_parts();
}

}  // namespace unshard
