#include "file_owners.h"

#include <algorithm>
#include <map>

#include "unshard/error.h"

namespace unshard {
namespace {

std::vector<int> ranks_on(const RankPlaces& places, const std::vector<std::uint32_t>& nodes) {
  std::vector<int> ranks;
  for (int rank = 0; rank < places.size(); ++rank) {
    if (places.sees(rank, nodes)) ranks.push_back(rank);
  }
  return ranks;
}

/// How many of `count` files each of `ranks` takes, so that the least loaded are filled up first.
std::vector<std::size_t> shares(const std::vector<int>& ranks, const std::vector<std::size_t>& load, std::size_t count) {
  std::vector<std::size_t> order(ranks.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return load[ranks[a]] < load[ranks[b]]; });
  std::size_t filled = 0, sum = 0;  // the `filled` least loaded ranks can be brought to one level with `count` files
  while (filled < order.size() && load[ranks[order[filled]]] * filled <= sum + count) sum += load[ranks[order[filled++]]];
  std::vector<std::size_t> share(ranks.size(), 0);
  for (std::size_t i = 0; i < filled; ++i) {
    const std::size_t level = (sum + count) * (i + 1) / filled - (sum + count) * i / filled;
    share[order[i]] = level > load[ranks[order[i]]] ? level - load[ranks[order[i]]] : 0;
  }
  return share;
}

}  // namespace

std::vector<int> file_owners(const RankPlaces& places, const Source& source) {
  std::map<std::vector<std::uint32_t>, std::vector<std::size_t>> files_by_nodes;
  for (std::size_t i = 0; i < source.files.size(); ++i) files_by_nodes[source.files[i].nodes].push_back(i);
  std::vector<decltype(files_by_nodes)::const_iterator> groups;
  for (auto group = files_by_nodes.cbegin(); group != files_by_nodes.cend(); ++group) groups.push_back(group);
  // Those with the least choice first.
  std::stable_sort(groups.begin(), groups.end(), [](auto a, auto b) { return a->first.size() < b->first.size(); });

  std::vector<int> owners(source.files.size(), 0);
  std::vector<std::size_t> load(static_cast<std::size_t>(places.size()), 0);
  for (const auto& group : groups) {
    const std::vector<int> ranks = ranks_on(places, group->first);
    const auto& files = group->second;
    if (ranks.empty()) throw Error(ErrorCode::internal, printable(source.files[files.front()].label) + ": no rank sees this file");
    const std::vector<std::size_t> share = shares(ranks, load, files.size());
    std::size_t next = 0;
    for (std::size_t i = 0; i < ranks.size(); ++i) {
      const std::size_t last = i + 1 == ranks.size() ? files.size() : std::min(files.size(), next + share[i]);
      load[static_cast<std::size_t>(ranks[i])] += last - next;
      for (; next < last; ++next) owners[files[next]] = ranks[i];
    }
  }
  return owners;
}

ByteOwners::ByteOwners(const Comm& comm, const Source& source) {
  const RankPlaces places(comm);
  std::map<std::vector<std::uint32_t>, std::size_t> group_of;
  for (const ShardFile& file : source.files) {
    const auto [known, is_new] = group_of.try_emplace(file.nodes, groups_.size());
    if (is_new) groups_.push_back({ranks_on(places, file.nodes), 0});
    Group& group = groups_[known->second];
    if (group.ranks.empty()) throw Error(ErrorCode::internal, printable(file.label) + ": no rank sees this file");
    places_.push_back({known->second, group.bytes});
    group.bytes += file.size_bytes;
  }
}

int ByteOwners::of(const Chunk& chunk) const {
  const Place& place = places_.at(chunk.file);
  const Group& group = groups_[place.group];
  const double share =
      static_cast<double>(place.before + chunk.record_position) / static_cast<double>(std::max<std::uint64_t>(group.bytes, 1));
  const auto number = static_cast<std::size_t>(share * static_cast<double>(group.ranks.size()));
  return group.ranks[std::min(number, group.ranks.size() - 1)];
}

std::vector<FileId> files_of(const std::vector<int>& owners, int rank) {
  std::vector<FileId> files;
  for (FileId file = 0; file < owners.size(); ++file)
    if (owners[file] == rank) files.push_back(file);
  return files;
}

int lowest_rank_on(const Comm& comm, const std::vector<std::uint32_t>& nodes) {
  const std::vector<int> ranks = ranks_on(RankPlaces(comm), nodes);
  if (ranks.empty()) throw Error(ErrorCode::internal, "no rank runs on a node that sees the file");
  return ranks.front();
}

}  // namespace unshard
