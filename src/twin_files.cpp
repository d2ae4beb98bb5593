#include "twin_files.h"

#include <algorithm>
#include <bit>
#include <functional>
#include <map>
#include <string>

#include "unshard/agree.h"
#include "unshard/file_cache.h"
#include "value_bytes.h"

namespace unshard {
namespace {

constexpr std::uint64_t most_bytes_read = std::uint64_t{64} << 10;

/// Of whole numbers, as there are millions: one step for each.
class QuickHash {
 public:
  void add(std::uint64_t number) { value_ = std::rotl((value_ ^ number) * 0x9E3779B97F4A7C15, 29); }
  void add(const Box& box) {
    for (std::size_t d = 0; d < box.offset.size(); ++d) {
      add(box.offset[d]);
      add(box.extent[d]);
    }
  }
  [[nodiscard]] std::uint64_t value() const { return value_; }

 private:
  std::uint64_t value_ = 0;
};

/// Whether the beginning of the largest record is one element again and again.
bool is_uniform(File& file, const FilePrint& print) {
  std::vector<std::byte> data(std::min(print.largest_bytes, most_bytes_read));
  file.read_at(print.largest_position, data);
  const std::size_t step = print.element_bytes;
  return data.size() <= step || std::equal(data.begin() + static_cast<std::ptrdiff_t>(step), data.end(), data.begin());
}

struct Twin {
  enum class Kind : std::uint8_t { other_tensors, other_parts, replica };
  FileId file = 0, of = 0;
  Kind kind = Kind::replica;
};

/// Files with the data of an earlier one.
std::vector<Twin> suspects(std::vector<FilePrint> prints, bool among_tensors) {
  std::sort(prints.begin(), prints.end(), [](const FilePrint& a, const FilePrint& b) { return a.file < b.file; });
  std::map<std::uint64_t, const FilePrint*> first_by_data;
  std::vector<Twin> twins;
  for (const FilePrint& print : prints) {
    const FilePrint& first = *first_by_data.emplace(print.data, &print).first->second;
    if (first.file == print.file) continue;
    if (first.names == print.names)
      twins.push_back({print.file, first.file, first.boxes == print.boxes ? Twin::Kind::replica : Twin::Kind::other_parts});
    else if (among_tensors)
      twins.push_back({print.file, first.file, Twin::Kind::other_tensors});
  }
  return twins;
}

Finding finding_of(const Source& source, const Twin& twin, const std::string& what_for) {
  return {Severity::error, source.files[twin.file].label,
          "holds the same data as " + printable(source.files[twin.of].label) + ", " + what_for +
              "; one was copied over the other: put back the file of this rank",
          ErrorCode::bad_input};
}

}  // namespace

std::optional<FilePrint> print_of(FileId file, std::span<const Piece> pieces) {
  FilePrint print;
  print.file = file;
  QuickHash data, names, boxes;
  for (const Piece& piece : pieces) {
    if (!piece.chunks.empty()) names.add(std::hash<std::string>()(piece.name));
    for (const Chunk& chunk : piece.chunks) {
      if (!chunk.has_crc) return std::nullopt;
      data.add(chunk.record_position);
      data.add(chunk.record_bytes << 32 ^ chunk.record_crc);
      boxes.add(chunk.box);
      if (chunk.record_bytes <= print.largest_bytes) continue;
      print.largest_bytes = chunk.record_bytes;
      print.largest_position = chunk.record_position;
      print.element_bytes = info(piece.dtype).size_bytes;
    }
  }
  if (print.largest_bytes == 0) return std::nullopt;
  print.data = data.value();
  print.names = names.value();
  print.boxes = boxes.value();
  return print;
}

Twins find_twins(Comm& comm, FileCache& files, const Source& source, const std::vector<FilePrint>& mine, bool among_tensors) {
  std::vector<FilePrint> all;
  for (const Bytes& bytes : comm.gather_all(bytes_of(mine))) append_values(all, bytes);
  const std::vector<Twin> twins = suspects(std::move(all), among_tensors);
  if (twins.empty()) return {};
  const Bytes confirmed = collectively(comm, "catalog", [&] {
    std::vector<Twin> found;
    for (const Twin& twin : twins) {
      if (twin.kind == Twin::Kind::replica) continue;
      const auto print = std::find_if(mine.begin(), mine.end(), [&](const FilePrint& one) { return one.file == twin.file; });
      if (print == mine.end()) continue;
      bool uniform = false;
      const auto unreadable = attempt([&] { uniform = is_uniform(*files.get(twin.file), *print); });
      if (unreadable && is_stop(unreadable->code())) throw *unreadable;
      if (!uniform) found.push_back(twin);
    }
    return bytes_of(found);
  });
  std::vector<Twin> found;
  for (const Bytes& bytes : comm.gather_all(confirmed)) append_values(found, bytes);
  std::sort(found.begin(), found.end(), [](const Twin& a, const Twin& b) { return a.file < b.file; });
  Twins result;
  for (const Twin& twin : found)
    result.copies.push_back(
        finding_of(source, twin, twin.kind == Twin::Kind::other_parts ? "for other parts of the tensors" : "for other layers or experts"));
  for (const Twin& twin : twins)
    if (twin.kind == Twin::Kind::replica)
      result.replicas.push_back(finding_of(source, twin, "for the same parts, while others are missing"));
  return result;
}

}  // namespace unshard
