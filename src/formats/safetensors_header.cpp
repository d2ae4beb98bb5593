// safetensors: 8 bytes, little-endian: N; N bytes of UTF-8 JSON, at most 100 MB; then the data, to the end of the file.
//
//     {"__metadata__": {"format": "pt"}, "name": {"dtype": "BF16", "shape": [24, 16], "data_offsets": [begin, end]}, ...}
//
// Offsets count from the end of the header; sorted by them, the tensors follow each other without hole or overlap, and the last one ends
// where the file does. Elements are little-endian in C order. Sources: huggingface/safetensors safetensors/src/tensor.rs (read_metadata,
// validate), whose checks these are, and README.md, which forbids duplicate names. F4 counts 4-bit elements in the last extent; PyTorch's
// type (float4_e2m1fn_x2) counts bytes.
#include "safetensors_header.h"

#include <algorithm>
#include <array>
#include <utility>

#include "../checked_math.h"
#include "json_events.h"
#include "unshard/error.h"

namespace unshard {
namespace {

constexpr std::uint64_t length_bytes = 8;
constexpr std::uint64_t header_limit_bytes = 100'000'000;

[[noreturn]] void refuse(const std::string& label, const std::string& why) {
  throw Error(ErrorCode::bad_input, label + ": " + why);
}

/// One entry as the header states it.
struct Entry {
  std::string name;
  std::string dtype;
  std::array<std::uint64_t, max_rank> extents{};
  std::size_t rank = 0;
  std::array<std::uint64_t, 2> offsets{};
  std::size_t offset_count = 0;
  bool has_dtype = false, has_shape = false, has_offsets = false;
};

std::string of_tensor(const Entry& entry) {
  return "tensor " + printable(entry.name);
}

/// Collects entries from the events of the JSON text.
class EntryReader {
 public:
  explicit EntryReader(const std::string& label) : label_(label) {}
  void operator()(const JsonEvent& event) {
    switch (event.path.size()) {
      case 0:
        return top(event);
      case 1:
        return begin_entry(event);
      case 2:
        return in_metadata_ ? metadata_value(event) : field(event);
      default:
        return;  // inside a field that no reader knows
    }
  }
  std::vector<Entry> entries;
  std::optional<std::map<std::string, std::string>> metadata;

 private:
  void top(const JsonEvent& event) const {
    if (event.kind != JsonEvent::Kind::object) refuse(label_, "the header is not a JSON object");
  }

  void begin_entry(const JsonEvent& event) {
    const std::string& name = event.path[0];
    if (event.kind != JsonEvent::Kind::object) refuse(label_, "tensor " + printable(name) + ": the header's entry is not a JSON object");
    in_metadata_ = name == "__metadata__";
    if (!in_metadata_) {
      entries.emplace_back().name = name;
      return;
    }
    if (metadata) refuse(label_, "the header has __metadata__ twice");
    metadata.emplace();
  }

  void metadata_value(const JsonEvent& event) {
    const std::string& key = event.path[1];
    if (event.kind != JsonEvent::Kind::text || event.arrays > 0) refuse(label_, "__metadata__: " + printable(key) + " is not a string");
    if (!metadata->emplace(key, event.text).second) refuse(label_, "__metadata__ has the key " + printable(key) + " twice");
  }

  void field(const JsonEvent& event) {
    Entry& entry = entries.back();
    const std::string& key = event.path[1];
    if (key == "dtype") {
      once(entry, entry.has_dtype, key);
      if (event.kind != JsonEvent::Kind::text) refuse(label_, of_tensor(entry) + ": dtype is not a string");
      entry.dtype = event.text;
    } else if (key == "shape") {
      if (!begins(event, entry, entry.has_shape, key)) return;
      if (entry.rank == max_rank) {
        throw Error(ErrorCode::unsupported,
                    label_ + ": " + of_tensor(entry) + " has more than " + std::to_string(max_rank) + " dimensions");
      }
      entry.extents[entry.rank++] = whole_number(event, entry, key);
    } else if (key == "data_offsets") {
      if (!begins(event, entry, entry.has_offsets, key)) return;
      if (entry.offset_count == 2) refuse(label_, of_tensor(entry) + ": data_offsets has more than two numbers");
      entry.offsets[entry.offset_count++] = whole_number(event, entry, key);
    }
  }

  void once(const Entry& entry, bool& seen, const std::string& key) const {
    if (seen) refuse(label_, of_tensor(entry) + ": " + key + " is given twice");
    seen = true;
  }

  /// Takes the array itself (false) or lets one of its elements pass (true).
  bool begins(const JsonEvent& event, const Entry& entry, bool& seen, const std::string& key) const {
    if (event.arrays == 1) return true;
    once(entry, seen, key);
    if (event.kind != JsonEvent::Kind::array) refuse(label_, of_tensor(entry) + ": " + key + " is not a list");
    return false;
  }

  [[nodiscard]] std::uint64_t whole_number(const JsonEvent& event, const Entry& entry, const std::string& key) const {
    if (event.kind != JsonEvent::Kind::number) {
      refuse(label_, of_tensor(entry) + ": " + key + " holds something that is not a whole number from 0 to 2^64 - 1");
    }
    return event.number;
  }

  const std::string& label_;
  bool in_metadata_ = false;
};

bool is_lfs_pointer(std::string_view start) {
  return start.starts_with("version https://git-lfs") || start.starts_with("version https://hawser");
}

/// The length of the JSON text, with a reason for everything that is no safetensors file.
std::uint64_t read_length(File& file, const std::string& label) {
  std::array<char, 64> start{};
  const std::uint64_t size = file.size();
  const std::size_t known = static_cast<std::size_t>(std::min<std::uint64_t>(size, start.size()));
  file.read_at(0, std::as_writable_bytes(std::span(start.data(), known)));
  const std::string_view text(start.data(), known);
  if (is_lfs_pointer(text)) refuse(label, "is a git-lfs pointer, not the weights; run `git lfs pull` in the folder it came from");
  if (size < length_bytes) refuse(label, "has " + std::to_string(size) + " bytes, too few for a safetensors header; copy the file again");
  if (text.starts_with("PK\x03\x04")) refuse(label, "is a zip archive (as torch.save writes), not a safetensors file");
  std::uint64_t length = 0;
  for (std::size_t i = 0; i < length_bytes; ++i) length |= std::uint64_t{static_cast<unsigned char>(start[i])} << (8 * i);
  if (length > header_limit_bytes) {
    refuse(label, "its header would have " + std::to_string(length) + " bytes, at most " + std::to_string(header_limit_bytes) +
                      " are allowed; the file is damaged or no safetensors file");
  }
  if (length > size - length_bytes) {
    refuse(label, "its header needs " + std::to_string(length + length_bytes) + " bytes, the file has " + std::to_string(size) +
                      "; it is cut short, copy it again");
  }
  return length;
}

/// Checks one entry by itself. Its offsets stay relative to the data.
SafetensorsTensor checked(const Entry& entry, const std::string& label) {
  const auto missing = [&](std::string_view key) { refuse(label, of_tensor(entry) + ": the header's entry has no " + std::string(key)); };
  if (!entry.has_dtype) missing("dtype");
  if (!entry.has_shape) missing("shape");
  if (!entry.has_offsets || entry.offset_count != 2) missing("data_offsets [begin, end]");
  const auto dtype = dtype_from_safetensors(entry.dtype);
  if (!dtype) {
    throw Error(ErrorCode::unsupported,
                label + ": " + of_tensor(entry) + ": element type " + printable(entry.dtype) + " is not known to this version");
  }
  SafetensorsTensor tensor{entry.name, *dtype, Shape(std::span(entry.extents.data(), entry.rank)), entry.offsets[0], 0};
  const std::string shape = to_string(tensor.shape);
  if (*dtype == DType::f4_x2) {
    if (tensor.shape.empty() || tensor.shape[entry.rank - 1] % 2 != 0)
      refuse(label, of_tensor(entry) + ": shape " + shape + " of F4 fills no whole bytes");
    tensor.shape[entry.rank - 1] /= 2;
  }
  std::optional<std::uint64_t> bytes = std::ranges::find(tensor.shape, 0U) == tensor.shape.end() ? 1 : 0;
  for (const std::uint64_t extent : tensor.shape) bytes = bytes ? checked_multiply(*bytes, extent) : bytes;
  bytes = bytes ? checked_multiply(*bytes, info(*dtype).size_bytes) : bytes;
  if (!bytes) refuse(label, of_tensor(entry) + ": shape " + shape + " of " + entry.dtype + " is larger than any file");
  const auto [begin, end] = entry.offsets;
  if (begin > end)
    refuse(label, of_tensor(entry) + ": data_offsets [" + std::to_string(begin) + ", " + std::to_string(end) + "] run backwards");
  if (end - begin != *bytes) {
    refuse(label, of_tensor(entry) + ": shape " + shape + " of " + entry.dtype + " needs " + std::to_string(*bytes) +
                      " bytes, data_offsets give it " + std::to_string(end - begin));
  }
  tensor.size_bytes = *bytes;
  return tensor;
}

void refuse_duplicates(const std::vector<Entry>& entries, const std::string& label) {
  std::vector<std::string_view> names;
  names.reserve(entries.size());
  for (const Entry& entry : entries) names.push_back(entry.name);
  std::ranges::sort(names);
  const auto twice = std::ranges::adjacent_find(names);
  if (twice != names.end()) refuse(label, "tensor " + printable(*twice) + " is in the header twice");
}

/// No hole, no overlap, nothing missing at the end, nothing left over. Turns offsets into positions in the file.
void place(std::vector<SafetensorsTensor>& tensors, std::uint64_t data_start, std::uint64_t file_bytes, const std::string& label) {
  std::ranges::stable_sort(tensors, {}, [](const SafetensorsTensor& t) { return std::pair(t.position, t.position + t.size_bytes); });
  std::uint64_t end = 0;
  const SafetensorsTensor* before = nullptr;
  for (SafetensorsTensor& tensor : tensors) {
    const std::string name = "tensor " + printable(tensor.name);
    if (tensor.position < end)
      refuse(label, name + " overlaps tensor " + printable(before->name) + " by " + std::to_string(end - tensor.position) + " bytes");
    if (tensor.position > end) {
      refuse(label, name + " begins at byte " + std::to_string(tensor.position) + " of the data, " + std::to_string(end) +
                        " was expected: a hole that belongs to no tensor");
    }
    end = tensor.position + tensor.size_bytes;
    before = &tensor;
  }
  const auto expected = checked_add(data_start, end);
  if (!expected || *expected != file_bytes) {
    refuse(label,
           "has " + std::to_string(file_bytes) + " bytes, its header describes " +
               (expected ? std::to_string(*expected) : "more than 2^64") +
               (!expected || *expected > file_bytes ? " (the file is cut short); copy it again" : "; the rest belongs to no tensor"));
  }
  for (SafetensorsTensor& tensor : tensors) tensor.position += data_start;
}

}  // namespace

SafetensorsHeader read_safetensors_header(File& file, const std::string& label) {
  const std::uint64_t length = read_length(file, label);
  std::string text(static_cast<std::size_t>(length), '\0');
  file.read_at(length_bytes, std::as_writable_bytes(std::span(text)));
  EntryReader reader(label);
  read_json(text, label, "header", std::ref(reader));
  refuse_duplicates(reader.entries, label);
  SafetensorsHeader header;
  header.metadata = std::move(reader.metadata);
  header.tensors.reserve(reader.entries.size());
  for (const Entry& entry : reader.entries) header.tensors.push_back(checked(entry, label));
  place(header.tensors, length_bytes + length, file.size(), label);
  return header;
}

}  // namespace unshard
