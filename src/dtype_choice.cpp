// Which element type each target gets, and what is said about it.
#include <algorithm>
#include <map>

#include "mapping_steps.h"
#include "names.h"
#include "unshard/error.h"

namespace unshard {
namespace {

/// Elements written per castable type; the one with most is what config.json states.
std::optional<DType> main_dtype(const Published& published) {
  std::map<DType, std::uint64_t> elements;
  for (const Target& target : published.targets) {
    if (info(target.dtype).castable) elements[target.dtype] += volume(target.shape);
  }
  const auto most = std::max_element(elements.begin(), elements.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
  if (most == elements.end() || most->second == 0) return std::nullopt;
  return most->first;
}

/// The dtype that the --like folder has for a floating tensor.
DType as_in_like(const MapContext& context, const std::string& name, DType stored, DType like) {
  if (like == stored || info(like).castable) return like;
  throw Error(ErrorCode::unsupported, printable(name) + ": is " + std::string(info(like).name) + " in the --like folder " +
                                          printable(context.options.like->path, 4096) + " and " + std::string(info(stored).name) +
                                          " in the checkpoint, which this version does not convert; give --dtype, or another folder");
}

}  // namespace

DType dtype_for(const MapContext& context, const std::string& name, DType stored) {
  const DTypeChoice& choice = context.options.dtype;
  if (!info(stored).castable) return stored;
  if (choice.kind == DTypeChoice::Kind::by_config && context.options.like) {
    const auto like = context.like.find(name);
    if (like != context.like.end()) return as_in_like(context, name, stored, like->second->dtype);
  }
  if (any_glob_matches(context.family.keep_dtype, name)) return stored;
  if (choice.kind == DTypeChoice::Kind::keep) return stored;
  const DType wanted = choice.kind == DTypeChoice::Kind::fixed ? choice.fixed : context.config.dtype().value_or(stored);
  return info(wanted).castable ? wanted : stored;
}

void choose_dtypes(const MapContext& context, Published& published, Mapping& mapping) {
  std::map<std::pair<DType, DType>, std::size_t> casts;
  for (Target& target : published.targets) {
    const DType stored = target.dtype;
    target.dtype = dtype_for(context, target.name, stored);
    if (target.dtype != stored) ++casts[{stored, target.dtype}];
  }
  for (const auto& [types, count] : casts) {
    mapping.notes.push_back("Casting " + std::to_string(count) + " parameters " + std::string(info(types.first).name) + " -> " +
                            std::string(info(types.second).name));
  }
  mapping.edits.dtype = main_dtype(published);
}

}  // namespace unshard
