#include "kept_split.h"

#include <algorithm>
#include <optional>

namespace unshard {
namespace {

struct OneFile {
  std::uint64_t tensors = 0, bytes = 0, largest = 0;
};

/// The target's file, if the target is a stored tensor as it is.
std::optional<std::uint32_t> file_of(const Source& source, const Catalog& catalog, const Target& target) {
  if (target.terms.size() != 1) return std::nullopt;
  const TensorRow& row = catalog.tensors[target.terms.front().source];
  const bool as_it_is = row.origin == 0 && row.name == target.name && row.dtype == target.dtype && row.shape == target.shape &&
                        target.terms.front() == copy_of(target.terms.front().source, row.shape);
  if (!as_it_is) return std::nullopt;
  const auto entry = std::ranges::lower_bound(source.index, row.name, {}, &IndexEntry::name);
  if (entry == source.index.end() || entry->name != row.name) return std::nullopt;
  return entry->file;
}

/// A file is closed when the next tensor does not fit; one that is larger than the limit has a file of its own, whatever is open.
bool is_split_for(const std::vector<OneFile>& files, std::uint64_t limit) {
  const OneFile* before = nullptr;
  for (const OneFile& file : files) {
    if (file.tensors == 0) return false;
    if (file.bytes > limit) {
      if (file.tensors > 1) return false;
      continue;
    }
    if (before != nullptr && file.largest <= limit - before->bytes) return false;
    before = &file;
  }
  return true;
}

}  // namespace

std::vector<std::uint32_t> kept_split(const Source& source, const Catalog& catalog, const Targets& targets, std::uint64_t max_shard_bytes) {
  if (source.index.size() != targets.targets.size()) return {};
  std::vector<OneFile> files;
  std::vector<std::uint32_t> file_by_target;
  for (const Target& target : targets.targets) {
    const auto number = file_of(source, catalog, target);
    if (!number) return {};
    if (files.size() <= *number) files.resize(*number + 1);
    OneFile& file = files[*number];
    const std::uint64_t bytes = volume(target.shape) * info(target.dtype).size_bytes;
    ++file.tensors;
    file.bytes += bytes;
    file.largest = std::max(file.largest, bytes);
    file_by_target.push_back(*number);
  }
  if (files.size() < 2 || !is_split_for(files, max_shard_bytes)) return {};
  return file_by_target;
}

}  // namespace unshard
