// A journal as a file: what was written comes back; a torn or changed one gives less, never a crash or something invented.
#include "journal.h"

#include <gtest/gtest.h>

#include "crc32c.h"
#include "support/memory_file_system.h"

namespace unshard {
namespace {

using test::MemoryFileSystem;

const std::string path = "/.unshard-journal-1-0";
const std::vector<std::uint64_t> sizes{1000, 500};

JournalKey small_key() {
  return {std::string(64, 'c'), std::string(64, 'i'), 2};
}

std::string journal_of(const std::vector<Extent>& extents) {
  MemoryFileSystem files;
  Journal journal(files, path, small_key());
  for (const Extent& extent : extents) {
    journal.add(extent);
    journal.flush();
  }
  return files.content(path);
}

std::optional<JournalContent> read_text(const std::string& text, const std::vector<std::uint64_t>& file_sizes = sizes) {
  MemoryFileSystem files;
  files.put(path, text);
  return read_journal(*files.open_for_reading(path), file_sizes);
}

TEST(Journal, SaysWhoseItIsAndWhatWasWritten) {
  const auto content = read_text(journal_of({{0, 10, 20, 77}, {1, 0, 500, 88}}));
  ASSERT_TRUE(content);
  EXPECT_EQ(content->key, small_key());
  ASSERT_EQ(content->extents.size(), 2u);
  EXPECT_EQ(content->extents[1].file, 1u);
  EXPECT_EQ(content->extents[1].end, 500u);
  EXPECT_EQ(content->extents[1].crc32c, 88u);
}

TEST(Journal, JoinsNeighboursWithTheChecksumOfBoth) {
  const std::string bytes = "0123456789";
  const auto part = [&](std::size_t from, std::size_t to) { return crc32c(std::as_bytes(std::span(bytes).subspan(from, to - from))); };
  MemoryFileSystem files;
  Journal journal(files, path, small_key());
  journal.add({0, 4, 10, part(4, 10)});
  journal.add({0, 0, 4, part(0, 4)});
  journal.flush();
  const auto content = read_journal(*files.open_for_reading(path), sizes);
  ASSERT_EQ(content->extents.size(), 1u);
  EXPECT_EQ(content->extents[0].end, 10u);
  EXPECT_EQ(content->extents[0].crc32c, part(0, 10));
}

TEST(Journal, AppendsByItselfAfterAMebibyteOfOutput) {
  MemoryFileSystem files;
  Journal journal(files, path, small_key());
  journal.add({0, 0, 1 << 19, 1});
  EXPECT_EQ(files.content(path).size(), 152u);
  journal.add({0, 1 << 20, 3 << 19, 1});
  EXPECT_EQ(files.content(path).size(), 152u + 2 * 32);
}

TEST(Journal, CutAtAnyByteGivesTheWholeRecordsBefore) {
  const std::string whole = journal_of({{0, 10, 20, 77}, {1, 0, 500, 88}, {0, 30, 40, 99}});
  for (std::size_t length = 0; length < whole.size(); ++length) {
    const auto content = read_text(whole.substr(0, length));
    ASSERT_EQ(content.has_value(), length >= 152) << length;
    if (content) {
      EXPECT_EQ(content->extents.size(), (length - 152) / 32) << length;
    }
  }
}

TEST(Journal, AChangedByteEndsItThere) {
  const std::string whole = journal_of({{0, 10, 20, 77}, {1, 0, 500, 88}, {0, 30, 40, 99}});
  for (std::size_t at = 0; at < whole.size(); ++at) {
    std::string changed = whole;
    changed[at] = static_cast<char>(changed[at] ^ 4);
    const auto content = read_text(changed);
    if (at < 148) {
      EXPECT_FALSE(content) << at;
    } else if (at >= 152) {
      EXPECT_EQ(content->extents.size(), (at - 152) / 32) << at;
    }
  }
}

TEST(Journal, RangesThatNoRunCouldHaveWrittenAreLeftOut) {
  const std::uint64_t huge = std::uint64_t{1} << 40;
  const auto content = read_text(journal_of({{2, 0, 10, 1}, {0, 20, 20, 1}, {0, 30, 20, 1}, {0, 990, 1001, 1}, {0, 0, ~std::uint64_t{0}, 1}, {1, 1, 2, 5}}));
  ASSERT_EQ(content->extents.size(), 1u);
  EXPECT_EQ(content->extents[0].crc32c, 5u);
  EXPECT_TRUE(read_text(journal_of({{0, 0, huge / 2, 1}}), {huge})->extents.empty()) << "longer than any record";
}

TEST(Journal, OneThatClaimsEverythingSeveralTimesSaysNothing) {
  std::vector<Extent> extents;
  for (std::uint32_t i = 0; i < 4; ++i) extents.push_back({0, i, 900, i});
  EXPECT_TRUE(read_text(journal_of(extents))->extents.empty());
}

TEST(Journal, NamesHaveTwoNumbersAndNothingElse) {
  EXPECT_EQ(journal_name({3, 12}), ".unshard-journal-3-12");
  EXPECT_EQ(parse_journal_name(".unshard-journal-3-12")->rank, 12u);
  for (const char* name : {".unshard-journal-3", ".unshard-journal-", ".unshard-journal-3-", ".unshard-journal-x-1", ".unshard-journal-3-1.part",
                           ".unshard-journal--1-2", ".unshard-journal-99999999999-1", "model.safetensors"})
    EXPECT_FALSE(parse_journal_name(name)) << name;
}

}  // namespace
}  // namespace unshard
