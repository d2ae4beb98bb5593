#include "nodes.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <numeric>

#include "checked.h"

namespace unshard {

namespace {

constexpr std::size_t name_bytes = 64;  // of a host, on Linux

/// What one rank says of its node. Fixed size, so that one call exchanges it.
struct Place {
  std::array<char, name_bytes + 1> host{};
  std::array<char, name_bytes> kernel{};
  std::array<char, name_bytes> mounts{};

  [[nodiscard]] bool same_as(const Place& other) const { return host == other.host && kernel == other.kernel && mounts == other.mounts; }
};

Place own_place() {
  Place place;
  if (gethostname(place.host.data(), name_bytes) != 0) place.host[0] = '?';
  std::ifstream boot("/proc/sys/kernel/random/boot_id");
  boot.read(place.kernel.data(), name_bytes - 1);
  if (readlink("/proc/self/ns/mnt", place.mounts.data(), name_bytes - 1) < 0) place.mounts[0] = '?';
  return place;
}

}  // namespace

NodeMap find_nodes(MPI_Comm comm) {
  int size = 0;
  check(MPI_Comm_size(comm, &size), "MPI_Comm_size");
  const Place mine = own_place();
  std::vector<Place> places(static_cast<std::size_t>(size));
  check(MPI_Allgather(&mine, sizeof mine, MPI_BYTE, places.data(), sizeof mine, MPI_BYTE, comm), "MPI_Allgather");
  NodeMap nodes;
  std::vector<const Place*> known;
  for (const Place& place : places) {
    const auto found = std::find_if(known.begin(), known.end(), [&](const Place* one) { return one->same_as(place); });
    nodes.node.push_back(static_cast<int>(found - known.begin()));
    nodes.host.emplace_back(place.host.data());
    if (found == known.end()) known.push_back(&place);
  }
  nodes.count = static_cast<int>(known.size());
  return nodes;
}

NodeMap nodes_of_part(const NodeMap& nodes, MPI_Comm whole, MPI_Comm part) {
  MPI_Group group_of_whole = MPI_GROUP_NULL, group_of_part = MPI_GROUP_NULL;
  int size = 0;
  check(MPI_Comm_size(part, &size), "MPI_Comm_size");
  check(MPI_Comm_group(whole, &group_of_whole), "MPI_Comm_group");
  check(MPI_Comm_group(part, &group_of_part), "MPI_Comm_group");
  std::vector<int> ranks(static_cast<std::size_t>(size)), origins(ranks.size());
  std::iota(ranks.begin(), ranks.end(), 0);
  const int code = MPI_Group_translate_ranks(group_of_part, size, ranks.data(), group_of_whole, origins.data());
  MPI_Group_free(&group_of_whole);
  MPI_Group_free(&group_of_part);
  check(code, "MPI_Group_translate_ranks");

  NodeMap result;
  std::vector<int> known;
  for (const int origin : origins) {
    const int node = nodes.node.at(origin);
    const auto found = std::find(known.begin(), known.end(), node);
    result.node.push_back(static_cast<int>(found - known.begin()));
    result.host.push_back(nodes.host.at(origin));
    if (found == known.end()) known.push_back(node);
  }
  result.count = static_cast<int>(known.size());
  return result;
}

}  // namespace unshard
