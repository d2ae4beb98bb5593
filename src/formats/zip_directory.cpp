// The bytes (PKWARE's APPNOTE 6.3; what torch writes of it: caffe2/serialize/inline_container.cc, third_party/miniz-3.0.2/miniz.c):
//
//   local header (30 bytes + name + extra), data, perhaps a data descriptor; … for each record
//   central directory: 46 bytes + name + extra + comment for each record
//   zip64 end record (56 bytes), zip64 locator (20 bytes): torch always writes them
//   end record (22 bytes + comment)
//
// torch's local headers state neither size nor CRC, and pad the data to a multiple of 64 with an extra field; so sizes come from the
// central directory, and the place of the data from the two lengths in the local header. Every record lies in one folder.
//
// A scanner and a loader that read different things from one file are an old trick: what the two headers say of one record must agree,
// records must not overlap, nothing may lie outside, and a name may occur once.
#include "formats/zip_directory.h"

#include <algorithm>
#include <cstring>

#include "checked_math.h"
#include "formats/little_endian.h"
#include "unshard/error.h"

namespace unshard {
namespace {

constexpr std::uint64_t local_bytes = 30, central_bytes = 46, end_bytes = 22, end64_bytes = 56, locator_bytes = 20;
constexpr std::uint64_t most_comment_bytes = 65535;
constexpr std::uint32_t local_signature = 0x04034B50, central_signature = 0x02014B50, end_signature = 0x06054B50,
                        end64_signature = 0x06064B50, locator_signature = 0x07064B50;
constexpr std::uint32_t saturated = 0xFFFFFFFF;
constexpr std::uint16_t flag_encrypted = 0x0001, flag_descriptor = 0x0008, flag_masked = 0x2000;

}  // namespace

/// Reads one archive. Positions are relative to the archive, until a record is handed out.
class ZipReader {
 public:
  ZipReader(File& file, std::uint64_t position, std::uint64_t length, const std::string& label)
      : file_(file), base_(position), length_(length), label_(label) {}
  ZipDirectory run();

 private:
  /// What the end records say.
  struct End {
    std::uint64_t count = 0;
    std::uint64_t directory_bytes = 0;
    std::uint64_t directory_at = 0;
    std::uint64_t at = 0;  ///< of the first end record
  };
  /// A record between the two headers.
  struct Entry {
    ZipRecord record;
    std::string_view full_name;
    std::uint64_t header_at = 0;
    std::uint16_t flags = 0;
  };

  [[noreturn]] void fail(const std::string& what, ErrorCode code = ErrorCode::bad_input) const { throw Error(code, label_ + ": " + what); }
  [[noreturn]] void lies(const std::string& what) const { fail("zip archive is damaged: " + what); }
  std::string record_name(const Entry& entry) const { return "record '" + printable(entry.full_name) + "'"; }

  void read_tail(std::uint64_t bytes);
  const std::byte* in_tail(std::uint64_t at) const { return tail_.data() + (at - tail_at_); }
  std::uint64_t find_end() const;
  End read_end();
  void apply_end64(End& end, const std::byte* classic);
  void read_directory(const End& end);
  void parse_directory(const End& end);
  std::size_t parse_entry(std::size_t at, Entry& entry) const;
  void apply_zip64_field(std::span<const std::byte> extra, std::uint64_t& packed_bytes, Entry& entry) const;
  void check_flags(const Entry& entry) const;
  void split_names();
  void locate(const End& end);
  void check_local_header(Entry& entry, std::span<const std::byte> header, std::uint64_t limit, bool last) const;
  std::span<const std::byte> header_bytes(std::size_t index, std::uint64_t limit);
  std::uint64_t window_end(std::size_t index, std::uint64_t limit) const;
  void sort_records();

  File& file_;
  std::uint64_t base_, length_;
  const std::string& label_;
  std::vector<std::byte> tail_;
  std::uint64_t tail_at_ = 0;
  std::vector<std::byte> window_;  ///< local headers and what lies between them
  std::uint64_t window_at_ = 0;
  std::vector<Entry> entries_;
  ZipDirectory directory_;
};

ZipDirectory ZipReader::run() {
  const End end = read_end();
  read_directory(end);
  parse_directory(end);
  split_names();
  locate(end);
  sort_records();
  return std::move(directory_);
}

/// Keeps the last `bytes` bytes of the archive.
void ZipReader::read_tail(std::uint64_t bytes) {
  tail_.resize(static_cast<std::size_t>(std::min(bytes, length_)));
  tail_at_ = length_ - tail_.size();
  file_.read_at(base_ + tail_at_, tail_);
}

/// Where the end record begins, searched backwards; length_ when there is none.
std::uint64_t ZipReader::find_end() const {
  if (length_ < end_bytes) return length_;
  for (std::uint64_t at = length_ - end_bytes; at >= tail_at_; --at) {
    const std::byte* from = in_tail(at);
    if (load_u32(from) == end_signature && load_u16(from + 20) == length_ - at - end_bytes) return at;
    if (at == 0) break;
  }
  return length_;
}

ZipReader::End ZipReader::read_end() {
  constexpr std::uint64_t usual_tail_bytes = 4096;
  read_tail(usual_tail_bytes);
  End end;
  end.at = find_end();
  if (end.at == length_ && length_ > usual_tail_bytes) {
    read_tail(end_bytes + most_comment_bytes + locator_bytes + end64_bytes);
    end.at = find_end();
  }
  if (end.at == length_) {
    fail("is truncated: a zip archive of " + std::to_string(length_) +
         " bytes without the directory that belongs at its end; copy the file again");
  }
  if (end.at - tail_at_ < locator_bytes + end64_bytes && tail_at_ > 0) read_tail(length_ - end.at + locator_bytes + end64_bytes);
  const std::byte* classic = in_tail(end.at);
  if (load_u16(classic + 4) != 0 || load_u16(classic + 6) != 0)
    fail("is one volume of a zip archive of several; join them", ErrorCode::unsupported);
  if (load_u16(classic + 8) != load_u16(classic + 10)) lies("the end record gives two numbers of records");
  end.count = load_u16(classic + 10);
  end.directory_bytes = load_u32(classic + 12);
  end.directory_at = load_u32(classic + 16);
  apply_end64(end, classic);
  if (!range_fits(end.directory_at, end.directory_bytes, end.at) || end.directory_at + end.directory_bytes != end.at) {
    lies("its directory of " + std::to_string(end.directory_bytes) + " bytes at " + std::to_string(end.directory_at) + " does not end at " +
         std::to_string(end.at) + ", where the end record begins");
  }
  if (end.count > end.directory_bytes / central_bytes) {
    lies("its directory of " + std::to_string(end.directory_bytes) + " bytes can't hold " + std::to_string(end.count) + " records");
  }
  return end;
}

/// The zip64 end record, if there is one: its numbers hold, and those of the classic record must be the same or left open.
void ZipReader::apply_end64(End& end, const std::byte* classic) {
  const bool open = end.count == 0xFFFF || end.directory_bytes == saturated || end.directory_at == saturated;
  if (end.at < locator_bytes || load_u32(classic - locator_bytes) != locator_signature) {
    if (open) lies("the zip64 end record is missing");
    return;
  }
  const std::uint64_t at = load_u64(classic - locator_bytes + 8);
  if (!range_fits(at, end64_bytes, end.at - locator_bytes) || at + end64_bytes != end.at - locator_bytes) {
    lies("the zip64 end record is said to be at " + std::to_string(at) + ", expected at " +
         std::to_string(end.at - std::min(end.at, locator_bytes + end64_bytes)));
  }
  const std::byte* from = in_tail(at);
  if (load_u32(from) != end64_signature || load_u64(from + 4) != end64_bytes - 12) lies("no zip64 end record at " + std::to_string(at));
  if (load_u32(from + 16) != 0 || load_u32(from + 20) != 0)
    fail("is one volume of a zip archive of several; join them", ErrorCode::unsupported);
  const std::uint64_t count = load_u64(from + 32), bytes = load_u64(from + 40), directory_at = load_u64(from + 48);
  const bool same = (end.count == 0xFFFF || end.count == count) && (end.directory_bytes == saturated || end.directory_bytes == bytes) &&
                    (end.directory_at == saturated || end.directory_at == directory_at) && load_u64(from + 24) == count;
  if (!same) lies("its two end records disagree");
  end = {count, bytes, directory_at, at};
}

void ZipReader::read_directory(const End& end) {
  auto& bytes = directory_.directory_;
  bytes.resize(static_cast<std::size_t>(end.directory_bytes));
  if (end.directory_at >= tail_at_) {
    std::copy_n(in_tail(end.directory_at), bytes.size(), bytes.begin());
  } else {
    file_.read_at(base_ + end.directory_at, bytes);
  }
}

void ZipReader::parse_directory(const End& end) {
  entries_.resize(static_cast<std::size_t>(end.count));
  std::size_t at = 0;
  for (Entry& entry : entries_) {
    at = parse_entry(at, entry);
    const std::uint64_t least = local_bytes + entry.full_name.size();
    if (!range_fits(entry.header_at, least, end.directory_at) || entry.record.size_bytes > end.directory_at - entry.header_at - least) {
      lies(record_name(entry) + " of " + std::to_string(entry.record.size_bytes) + " bytes at " + std::to_string(entry.header_at) +
           " goes beyond the directory at " + std::to_string(end.directory_at));
    }
  }
  if (at != directory_.directory_.size()) {
    lies("its directory of " + std::to_string(directory_.directory_.size()) + " bytes has " +
         std::to_string(directory_.directory_.size() - at) + " bytes behind its last record");
  }
}

/// One record of the central directory; gives where the next one begins.
std::size_t ZipReader::parse_entry(std::size_t at, Entry& entry) const {
  const std::span<const std::byte> bytes = directory_.directory_;
  if (!range_fits(at, central_bytes, bytes.size())) lies("its directory ends inside a record");
  const std::byte* from = bytes.data() + at;
  if (load_u32(from) != central_signature) lies("no directory record at byte " + std::to_string(at) + " of its directory");
  const std::size_t name_bytes = load_u16(from + 28), extra_bytes = load_u16(from + 30), comment_bytes = load_u16(from + 32);
  if (!range_fits(at + central_bytes, name_bytes + extra_bytes + comment_bytes, bytes.size())) lies("its directory ends inside a record");
  entry.full_name = {reinterpret_cast<const char*>(from) + central_bytes, name_bytes};
  entry.flags = load_u16(from + 8);
  entry.record.crc = load_u32(from + 16);
  std::uint64_t packed_bytes = load_u32(from + 20);
  entry.record.size_bytes = load_u32(from + 24);
  entry.header_at = load_u32(from + 42);
  entry.record.method = load_u16(from + 10);
  check_flags(entry);
  apply_zip64_field(bytes.subspan(at + central_bytes + name_bytes, extra_bytes), packed_bytes, entry);
  if (entry.record.method != 0) {
    entry.record.size_bytes = packed_bytes;
  } else if (packed_bytes != entry.record.size_bytes) {
    lies(record_name(entry) + " is stored as it is but has two sizes, " + std::to_string(packed_bytes) + " and " +
         std::to_string(entry.record.size_bytes) + " bytes");
  }
  return at + central_bytes + name_bytes + extra_bytes + comment_bytes;
}

/// Values too large for the record, in the order: size, packed size, header position; only those that are.
void ZipReader::apply_zip64_field(std::span<const std::byte> extra, std::uint64_t& packed_bytes, Entry& entry) const {
  std::span<const std::byte> field;
  while (extra.size() >= 4) {
    const std::uint16_t id = load_u16(extra.data()), size = load_u16(extra.data() + 2);
    if (size > extra.size() - 4) break;
    if (id == 1) {
      field = extra.subspan(4, size);
      break;
    }
    extra = extra.subspan(4 + std::size_t{size});
  }
  for (std::uint64_t* value : {&entry.record.size_bytes, &packed_bytes, &entry.header_at}) {
    if (*value != saturated) continue;
    if (field.size() < 8) lies(record_name(entry) + " lacks its zip64 sizes");
    *value = load_u64(field.data());
    field = field.subspan(8);
  }
}

void ZipReader::check_flags(const Entry& entry) const {
  if ((entry.flags & (flag_encrypted | flag_masked)) != 0)
    fail(record_name(entry) + " is encrypted; decrypt the archive", ErrorCode::unsupported);
}

/// Finds the one folder and leaves out entries for folders, which zip programs make and torch does not.
void ZipReader::split_names() {
  if (entries_.empty()) lies("it holds no records");
  const std::string_view first = entries_.front().full_name;
  const std::size_t slash = first.find('/');
  if (slash == std::string_view::npos) fail("is a zip archive but none of torch.save: record '" + printable(first) + "' lies in no folder");
  directory_.folder_ = first.substr(0, slash);
  for (Entry& entry : entries_) {
    if (entry.full_name.size() <= slash || entry.full_name[slash] != '/' || entry.full_name.substr(0, slash) != directory_.folder_) {
      lies(record_name(entry) + " lies outside the archive's folder '" + printable(directory_.folder_) + "'");
    }
    entry.record.name = entry.full_name.substr(slash + 1);
  }
  std::erase_if(entries_, [](const Entry& entry) { return entry.full_name.back() == '/' && entry.record.size_bytes == 0; });
}

/// Reads the local headers, in the order of the file, and proves that records neither overlap nor leave their place.
void ZipReader::locate(const End& end) {
  const auto by_place = [](const Entry& a, const Entry& b) { return a.header_at < b.header_at; };
  if (!std::is_sorted(entries_.begin(), entries_.end(), by_place)) std::sort(entries_.begin(), entries_.end(), by_place);
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    const bool last = i + 1 == entries_.size();
    const std::uint64_t limit = last ? end.directory_at : entries_[i + 1].header_at;
    const std::uint64_t least = local_bytes + entries_[i].full_name.size();
    if (limit - entries_[i].header_at < least) lies(record_name(entries_[i]) + " and the next record overlap");
    check_local_header(entries_[i], header_bytes(i, end.directory_at), limit, last);
  }
}

/// What a local header says must fit the directory, and the data must end before `limit`.
void ZipReader::check_local_header(Entry& entry, std::span<const std::byte> header, std::uint64_t limit, bool last) const {
  const std::byte* from = header.data();
  if (load_u32(from) != local_signature) lies("no header of " + record_name(entry) + " at " + std::to_string(entry.header_at));
  const std::size_t name_bytes = load_u16(from + 26), extra_bytes = load_u16(from + 28);
  if (name_bytes != entry.full_name.size() || std::memcmp(from + local_bytes, entry.full_name.data(), name_bytes) != 0) {
    lies(record_name(entry) + " has another name in the directory than in its own header at " + std::to_string(entry.header_at));
  }
  entry.flags = load_u16(from + 6);
  check_flags(entry);
  if (load_u16(from + 8) != entry.record.method) lies(record_name(entry) + " is compressed by one header and not by the other");
  const std::uint32_t packed_bytes = load_u32(from + 18);
  const bool stated = (entry.flags & flag_descriptor) == 0 && packed_bytes != saturated;
  if (stated && packed_bytes != entry.record.size_bytes) {
    lies(record_name(entry) + " has " + std::to_string(packed_bytes) + " bytes by its own header and " +
         std::to_string(entry.record.size_bytes) + " by the directory");
  }
  const std::uint64_t data_at = entry.header_at + local_bytes + name_bytes + extra_bytes;
  if (!range_fits(data_at, entry.record.size_bytes, limit)) {
    lies(record_name(entry) + " of " + std::to_string(entry.record.size_bytes) + " bytes at " + std::to_string(data_at) + " goes beyond " +
         std::to_string(limit) + ", where " + (last ? "the directory" : "the next record") + " begins");
  }
  entry.record.position = base_ + data_at;
}

/// The fixed part and name of a local header; one read serves all headers that lie close together.
std::span<const std::byte> ZipReader::header_bytes(std::size_t index, std::uint64_t limit) {
  const Entry& entry = entries_[index];
  const std::uint64_t wanted = local_bytes + entry.full_name.size();
  if (entry.header_at < window_at_ || entry.header_at + wanted > window_at_ + window_.size()) {
    window_at_ = entry.header_at;
    window_.resize(static_cast<std::size_t>(window_end(index, limit) - window_at_));
    file_.read_at(base_ + window_at_, window_);
  }
  return std::span<const std::byte>(window_).subspan(static_cast<std::size_t>(entry.header_at - window_at_));
}

std::uint64_t ZipReader::window_end(std::size_t index, std::uint64_t limit) const {
  constexpr std::uint64_t close_bytes = 4096, most_window_bytes = 256 << 10;
  const std::uint64_t begin = entries_[index].header_at;
  std::uint64_t end = begin + local_bytes + entries_[index].full_name.size();
  for (std::size_t i = index + 1; i < entries_.size(); ++i) {
    const std::uint64_t at = entries_[i].header_at, next_end = at + local_bytes + entries_[i].full_name.size();
    if (at - entries_[i - 1].header_at > close_bytes || next_end - begin > most_window_bytes) break;
    end = next_end;
  }
  return std::min(end, limit);
}

void ZipReader::sort_records() {
  auto& records = directory_.records_;
  records.reserve(entries_.size());
  for (const Entry& entry : entries_) records.push_back(entry.record);
  const auto order = [](const ZipRecord& a, const ZipRecord& b) { return ZipDirectory::before(a.name, b.name); };
  std::sort(records.begin(), records.end(), order);
  for (std::size_t i = 1; i < records.size(); ++i) {
    if (records[i - 1].name == records[i].name) lies("two records are named '" + printable(records[i].name) + "'");
  }
}

ZipDirectory ZipDirectory::read(File& file, std::uint64_t position, std::uint64_t length, const std::string& label) {
  return ZipReader(file, position, length, label).run();
}

const ZipRecord* ZipDirectory::find(std::string_view name) const {
  const auto place = std::lower_bound(records_.begin(), records_.end(), name,
                                      [](const ZipRecord& record, std::string_view wanted) { return before(record.name, wanted); });
  return place != records_.end() && place->name == name ? &*place : nullptr;
}

}  // namespace unshard
