#include "journal.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>
#include <limits>

#include "crc32c.h"
#include "formats/little_endian.h"
#include "unshard/error.h"

namespace unshard {
namespace {

constexpr std::string_view magic = "UNSHJNL2";
constexpr std::size_t identity_bytes = 64;
constexpr std::size_t header_bytes = 152;
constexpr std::size_t checked_header_bytes = 144;
constexpr std::size_t record_bytes = 32;
constexpr std::size_t checked_record_bytes = 28;
constexpr std::uint64_t batch_bytes = std::uint64_t{1} << 20;
constexpr std::uint64_t longest_extent_bytes = std::uint64_t{64} << 20;  ///< a window
constexpr std::uint64_t most_records = std::uint64_t{1} << 22;           ///< 128 MiB of journal; a terabyte of output has a quarter of it

template <class Number>
void put(std::byte* to, Number number) {
  for (std::size_t i = 0; i < sizeof(Number); ++i) to[i] = static_cast<std::byte>(number >> (8 * i) & 0xff);
}

std::array<std::byte, header_bytes> header_of(const JournalKey& key) {
  if (key.command.size() != identity_bytes || key.inputs.size() != identity_bytes) {
    throw Error(ErrorCode::internal, "journal: an identity of " + std::to_string(key.command.size()) + " or " +
                                         std::to_string(key.inputs.size()) + " characters, 64 were expected");
  }
  std::array<std::byte, header_bytes> header{};
  std::memcpy(header.data(), magic.data(), magic.size());
  put(header.data() + 8, static_cast<std::uint32_t>(key.stage));
  std::memcpy(header.data() + 16, key.command.data(), identity_bytes);
  std::memcpy(header.data() + 16 + identity_bytes, key.inputs.data(), identity_bytes);
  put(header.data() + checked_header_bytes, crc32c(std::span(header).first(checked_header_bytes)));
  return header;
}

void put_record(std::byte* to, const Extent& extent) {
  put(to, extent.file);
  put(to + 4, extent.crc32c);
  put(to + 8, extent.begin);
  put(to + 16, extent.end);
  put(to + 24, std::uint32_t{0});
  put(to + checked_record_bytes, crc32c({to, checked_record_bytes}));
}

std::optional<JournalKey> key_of(std::span<const std::byte> header) {
  if (std::memcmp(header.data(), magic.data(), magic.size()) != 0) return std::nullopt;
  if (load_u32(header.subspan(checked_header_bytes).data()) != crc32c(header.first(checked_header_bytes))) return std::nullopt;
  const auto* text = reinterpret_cast<const char*>(header.data());
  return JournalKey{std::string(text + 16, identity_bytes), std::string(text + 16 + identity_bytes, identity_bytes),
                    static_cast<int>(load_u32(header.subspan(8).data()))};
}

/// None for a torn or changed record.
std::optional<Extent> extent_of(std::span<const std::byte> record) {
  if (load_u32(record.subspan(checked_record_bytes).data()) != crc32c(record.first(checked_record_bytes))) return std::nullopt;
  return Extent{load_u32(record.data()), load_u64(record.subspan(8).data()),
                load_u64(record.subspan(16).data()), load_u32(record.subspan(4).data())};
}

bool is_possible(const Extent& extent, const std::vector<std::uint64_t>& sizes) {
  return extent.file < sizes.size() && extent.begin < extent.end && extent.end <= sizes[extent.file] &&
         extent.end - extent.begin <= longest_extent_bytes;
}

/// Neighbours become one extent.
std::vector<Extent> joined(std::vector<Extent> extents) {
  std::sort(extents.begin(), extents.end(),
            [](const Extent& a, const Extent& b) { return std::pair(a.file, a.begin) < std::pair(b.file, b.begin); });
  std::vector<Extent> result;
  for (const Extent& next : extents) {
    const bool joins = !result.empty() && result.back().file == next.file && result.back().end == next.begin &&
                       next.end - result.back().begin <= longest_extent_bytes;
    if (!joins) {
      result.push_back(next);
      continue;
    }
    result.back().crc32c = crc32c_joined(result.back().crc32c, next.crc32c, next.end - next.begin);
    result.back().end = next.end;
  }
  return result;
}

std::optional<std::uint32_t> number_of(std::string_view text) {
  std::uint32_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (text.empty() || error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

}  // namespace

std::string journal_name(const JournalName& name) {
  return std::string(journal_prefix) + std::to_string(name.run) + "-" + std::to_string(name.rank);
}

std::optional<JournalName> parse_journal_name(std::string_view name) {
  if (!name.starts_with(journal_prefix)) return std::nullopt;
  name.remove_prefix(journal_prefix.size());
  const std::size_t dash = name.find('-');
  if (dash == std::string_view::npos) return std::nullopt;
  const auto run = number_of(name.substr(0, dash)), rank = number_of(name.substr(dash + 1));
  if (!run || !rank) return std::nullopt;
  return JournalName{*run, *rank};
}

Journal::Journal(FileSystem& files, const std::string& path, const JournalKey& key) {
  const auto header = header_of(key);
  file_ = files.open_for_writing(path, true);
  file_->write_at(0, header);
  end_ = header.size();
}

void Journal::add(const Extent& extent) {
  const std::lock_guard lock(mutex_);
  waiting_.push_back(extent);
  waiting_bytes_ += extent.end - extent.begin;
  if (waiting_bytes_ >= batch_bytes) append();
}

void Journal::flush() {
  const std::lock_guard lock(mutex_);
  append();
}

void Journal::append() {
  const std::vector<Extent> extents = joined(std::move(waiting_));
  waiting_.clear();
  waiting_bytes_ = 0;
  std::vector<std::byte> records(extents.size() * record_bytes);
  for (std::size_t i = 0; i < extents.size(); ++i) put_record(records.data() + i * record_bytes, extents[i]);
  file_->write_at(end_, records);
  end_ += records.size();
}

std::optional<JournalContent> read_journal(File& file, const std::vector<std::uint64_t>& sizes) {
  if (file.size() < header_bytes) return std::nullopt;
  std::array<std::byte, header_bytes> header{};
  file.read_at(0, header);
  const std::optional<JournalKey> key = key_of(header);
  if (!key) return std::nullopt;
  std::uint64_t allowed = 0;  // bytes: a run writes each once
  for (const std::uint64_t size : sizes) allowed += std::min(size, std::numeric_limits<std::uint64_t>::max() - allowed);
  JournalContent content{*key, {}};
  const std::uint64_t count = std::min((file.size() - header_bytes) / record_bytes, most_records);
  std::vector<std::byte> block(static_cast<std::size_t>(std::min<std::uint64_t>(count, 8192)) * record_bytes);
  for (std::uint64_t done = 0; done < count;) {
    const auto records = static_cast<std::size_t>(std::min<std::uint64_t>(count - done, block.size() / record_bytes));
    file.read_at(header_bytes + done * record_bytes, std::span(block).first(records * record_bytes));
    done += records;
    for (std::size_t i = 0; i < records; ++i) {
      const std::optional<Extent> extent = extent_of(std::span(block).subspan(i * record_bytes, record_bytes));
      if (!extent) return content;
      if (!is_possible(*extent, sizes)) continue;
      const std::uint64_t bytes = extent->end - extent->begin;
      if (bytes > allowed) return JournalContent{*key, {}};
      allowed -= bytes;
      content.extents.push_back(*extent);
    }
  }
  return content;
}

}  // namespace unshard
