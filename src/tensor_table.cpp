#include "tensor_table.h"

#include <algorithm>
#include <tuple>
#include <unordered_map>

#include "hash.h"
#include "sha256.h"
#include "side_state.h"
#include "unshard/agree.h"
#include "wire.h"

namespace unshard {
namespace {

bool same_kind(const Sighting& a, const Sighting& b) {
  return a.dtype == b.dtype && a.shape == b.shape;
}
bool earlier(const Sighting& a, const Sighting& b) {
  return std::tie(a.file, a.position) < std::tie(b.file, b.position);
}

void write_kind(WireWriter& out, DType dtype, const Shape& shape) {
  out.number(static_cast<std::uint64_t>(dtype));
  out.shape(shape);
}

DType read_dtype(WireReader& in) {
  return static_cast<DType>(in.number_up_to(static_cast<std::uint64_t>(DType::c128)));
}

void write_sighting(WireWriter& out, const Sighting& sighting) {
  out.number(sighting.file);
  out.number(sighting.position);
  write_kind(out, sighting.dtype, sighting.shape);
}

Sighting read_sighting(WireReader& in) {
  Sighting sighting;
  sighting.file = static_cast<FileId>(in.number_up_to(UINT32_MAX));
  sighting.position = in.number();
  sighting.dtype = read_dtype(in);
  sighting.shape = in.shape();
  return sighting;
}

/// Names, types and shapes in order, without where they were seen.
Bytes encode_rows(const std::vector<SeenTensor>& seen) {
  WireWriter out;
  for (const SeenTensor& tensor : seen) {
    out.text(tensor.name);
    write_kind(out, tensor.first.dtype, tensor.first.shape);
  }
  return out.take();
}

void write_seen(WireWriter& out, const SeenTensor& tensor) {
  out.text(tensor.name);
  out.number(tensor.other ? 1 : 0);
  write_sighting(out, tensor.first);
  if (tensor.other) write_sighting(out, *tensor.other);
}

Bytes encode_sightings(const std::vector<SeenTensor>& seen) {
  WireWriter out;
  for (const SeenTensor& tensor : seen) write_seen(out, tensor);
  return out.take();
}

/// The rank that unites what all ranks say of a tensor of this name.
std::size_t uniter_of(const std::string& name, std::size_t ranks) {
  Hash hash;
  hash.add(name);
  return hash.value() % ranks;
}

/// Keeps the first sighting and the first that contradicts it.
void merge(SeenTensor& known, const Sighting& sighting) {
  Sighting candidate = sighting;
  if (earlier(candidate, known.first)) std::swap(candidate, known.first);
  const auto consider = [&](const Sighting& other) {
    if (!same_kind(other, known.first) && (!known.other || earlier(other, *known.other))) known.other = other;
  };
  if (known.other && same_kind(*known.other, known.first)) known.other.reset();
  consider(candidate);
}

std::vector<SeenTensor> merge_all(const std::vector<Bytes>& tables) {
  std::vector<SeenTensor> all;
  std::unordered_map<std::string, std::size_t> places;
  for (const Bytes& table : tables) {
    for (WireReader in(table); !in.at_end();) {
      const std::string name = in.text();
      const bool has_other = in.number_up_to(1) == 1;
      const Sighting first = read_sighting(in);
      const auto [place, is_new] = places.try_emplace(name, all.size());
      if (is_new) {
        all.push_back({name, first, std::nullopt});
      } else {
        merge(all[place->second], first);
      }
      if (has_other) merge(all[place->second], read_sighting(in));
    }
  }
  std::sort(all.begin(), all.end(), [](const SeenTensor& a, const SeenTensor& b) { return earlier(a.first, b.first); });
  return all;
}

std::string in_file(const Source& source, const Sighting& sighting) {
  return std::string(info(sighting.dtype).name) + " " + to_string(sighting.shape) + " in " +
         printable(source.files.at(sighting.file).label, 4096);
}

UnitedTable table_of(const Source& source, const std::vector<SeenTensor>& all, const std::vector<SeenTensor>& mine) {
  UnitedTable table;
  std::unordered_map<std::string_view, TensorId> ids;
  for (const SeenTensor& tensor : all) {
    ids.emplace(tensor.name, static_cast<TensorId>(table.rows.size()));
    table.rows.push_back({tensor.name, tensor.first.dtype, tensor.first.shape, 0});
    table.contradictory.push_back(tensor.other.has_value());
    if (!tensor.other) continue;
    table.findings.push_back(
        {is_side_state(tensor.name) ? Severity::note : Severity::error, tensor.name,
         "is " + in_file(source, tensor.first) + " but " + in_file(source, *tensor.other) + "; give the files of one checkpoint",
         ErrorCode::bad_input});
  }
  for (const SeenTensor& tensor : mine) table.ids.push_back(ids.at(tensor.name));
  return table;
}

/// The table of a rank whose rows are everybody's.
UnitedTable as_given(const std::vector<SeenTensor>& mine) {
  UnitedTable table;
  for (const SeenTensor& tensor : mine) {
    table.ids.push_back(static_cast<TensorId>(table.rows.size()));
    table.rows.push_back({tensor.name, tensor.first.dtype, tensor.first.shape, 0});
  }
  table.contradictory.assign(table.rows.size(), false);
  return table;
}

/// Collective. The tensors of all ranks. Each name is united on one rank, so that none holds the tables of all others: of 16,384 ranks with
/// 1,000 tensors each, that would be 16 million rows.
std::vector<SeenTensor> unite_by_name(Comm& comm, const std::vector<SeenTensor>& mine) {
  std::vector<Bytes> to_each = collectively(comm, "catalog", [&] {
    std::vector<WireWriter> lists(static_cast<std::size_t>(comm.size()));
    for (const SeenTensor& tensor : mine) write_seen(lists[uniter_of(tensor.name, lists.size())], tensor);
    std::vector<Bytes> bytes;
    for (WireWriter& list : lists) bytes.push_back(list.take());
    return bytes;
  });
  std::vector<Bytes> parts = comm.all_to_all(std::move(to_each));
  const Bytes part = collectively(comm, "catalog", [&] { return encode_sightings(merge_all(parts)); });
  parts = comm.gather_all(part);
  return collectively(comm, "catalog", [&] { return merge_all(parts); });
}

}  // namespace

void note_sighting(SeenTensor& seen, const Sighting& sighting) {
  if (!seen.other && !same_kind(seen.first, sighting)) seen.other = sighting;
}

UnitedTable unite_tables(Comm& comm, const Source& source, const std::vector<SeenTensor>& mine) {
  // Equal lists in order of first sighting have the order of the union: whichever rank saw a tensor first, it saw those before it in the
  // list earlier.
  const Bytes rows = collectively(comm, "catalog", [&] { return encode_rows(mine); });
  const bool contradicted = std::any_of(mine.begin(), mine.end(), [](const SeenTensor& tensor) { return tensor.other.has_value(); });
  WireWriter summary;
  if (!mine.empty()) {
    summary.number(contradicted ? 1 : 0);
    summary.raw(sha256(rows));
  }
  const std::vector<Bytes> summaries = comm.gather_all(summary.take());
  const auto has_rows = [](const Bytes& s) { return !s.empty(); };
  const auto first = std::find_if(summaries.begin(), summaries.end(), has_rows);
  if (first == summaries.end()) return {};
  const bool all_equal =
      first->front() == std::byte{0} && std::all_of(first, summaries.end(), [&](const Bytes& s) { return s.empty() || s == *first; });
  const bool all_have = std::all_of(summaries.begin(), summaries.end(), has_rows);
  if (all_equal && all_have) return as_given(mine);

  if (!all_equal) {
    const std::vector<SeenTensor> all = unite_by_name(comm, mine);
    return collectively(comm, "catalog", [&] { return table_of(source, all, mine); });
  }
  const auto root = static_cast<int>(first - summaries.begin());  // some ranks have no files
  Bytes given = collectively(comm, "catalog", [&] { return comm.rank() == root ? encode_sightings(mine) : Bytes{}; });
  comm.broadcast(given, root);
  return collectively(comm, "catalog", [&] { return table_of(source, merge_all({given}), mine); });
}

}  // namespace unshard
