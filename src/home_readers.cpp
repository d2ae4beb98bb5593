#include "home_readers.h"

#include <algorithm>
#include <set>
#include <string>
#include <utility>

#include "unshard/error.h"
#include "unshard/move.h"

namespace unshard {

std::vector<int> home_readers(const std::vector<ShardFile>& files, const Comm& comm) {
  // Of each node, its ranks by the bytes that they have so far.
  std::vector<std::set<std::pair<std::uint64_t, int>>> ranks_of_node(static_cast<std::size_t>(comm.node_count()));
  for (int rank = 0; rank < comm.size(); ++rank) ranks_of_node[comm.node_of(rank)].insert({0, rank});
  std::vector<int> readers;
  for (const ShardFile& file : files) {
    std::set<std::pair<std::uint64_t, int>>* least = nullptr;
    for (const std::uint32_t node : file.nodes) {
      if (node >= ranks_of_node.size() || ranks_of_node[node].empty()) continue;
      if (least == nullptr || *ranks_of_node[node].begin() < *least->begin()) least = &ranks_of_node[node];
    }
    if (least == nullptr) throw Error(ErrorCode::bad_input, printable(file.label) + ": no rank of this job sees the file");
    const auto [bytes, rank] = *least->begin();
    least->erase(least->begin());
    least->insert({bytes + file.size_bytes, rank});
    readers.push_back(rank);
  }
  return readers;
}

bool needs_home_readers(const Source& source, const Comm& comm) {
  // A file is opened by every owner that needs it. Two ranks may open all files; more ranks only as long as that stays a few opens a rank.
  constexpr std::uint64_t most_opens = 1024;
  if (comm.size() > 2 && source.files.size() * static_cast<std::uint64_t>(comm.size()) > most_opens) return true;
  const auto seen_everywhere = [&](const ShardFile& file) { return file.nodes.size() >= static_cast<std::size_t>(comm.node_count()); };
  return !std::all_of(source.files.begin(), source.files.end(), seen_everywhere);
}

}  // namespace unshard
