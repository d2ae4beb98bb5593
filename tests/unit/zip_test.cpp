// The directory of zip archives: hand-made archives, sound and lying.
#include <gtest/gtest.h>

#include "formats/zip_directory.h"
#include "support/memory_file.h"
#include "support/torch_archive.h"
#include "unshard/error.h"

namespace unshard {
namespace {

using namespace unshard::testing;

const Records three{{"data.pkl", "pickle"}, {"data/0", "first storage"}, {"data/1", ""}};

ZipDirectory parse(MemoryFile& file) {
  return ZipDirectory::read(file, 0, file.size(), "file.pt");
}

std::string content(File& file, const ZipRecord& record) {
  std::string text(record.size_bytes, '\0');
  file.read_at(record.position, std::as_writable_bytes(std::span(text)));
  return text;
}

TEST(Zip, RecordsAreFoundWithTheirBytes) {
  for (const bool zip64 : {false, true}) {
    MemoryFile file(zip_archive(three, {.crc = true, .zip64 = zip64}));
    const ZipDirectory directory = parse(file);
    EXPECT_EQ(directory.folder(), "archive");
    ASSERT_EQ(directory.records().size(), 3U);
    for (const auto& [name, data] : three) EXPECT_EQ(content(file, *directory.find(name)), data);
    EXPECT_EQ(directory.find("data/0")->crc, 0x3286F4F4U);  // zlib.crc32(b"first storage")
    EXPECT_EQ(directory.find("data/2"), nullptr);
    EXPECT_EQ(directory.find("data/0")->position % 64, 0U);
  }
}

TEST(Zip, AnArchiveMayLieAnywhereInAFile) {
  const std::string archive = zip_archive(three);
  MemoryFile file(std::string(1001, '#') + archive + zip_archive({{"other", "x"}}));
  const ZipDirectory directory = ZipDirectory::read(file, 1001, archive.size(), "item");
  EXPECT_EQ(content(file, *directory.find("data/0")), "first storage");
  EXPECT_EQ(directory.find("other"), nullptr);
}

TEST(Zip, ArchivesOfOtherProgramsAreRead) {
  MemoryFile plain(zip_archive(three, {.end64 = false}));
  EXPECT_EQ(parse(plain).records().size(), 3U);
  MemoryFile commented(zip_archive(three, {.comment = std::string(5000, 'c')}));
  EXPECT_EQ(parse(commented).records().size(), 3U);
  Records with_folders = three;
  with_folders.insert(with_folders.begin(), {"", ""});
  with_folders.emplace_back("data/", "");
  MemoryFile folders(zip_archive(with_folders));
  EXPECT_EQ(parse(folders).records().size(), 3U);
}

TEST(Zip, CompressedRecordsAreListedAsSuch) {
  const auto deflated = [](ZipFields& fields) { fields.method = 8; };
  MemoryFile file(zip_archive(three, {.edit_local = deflated, .edit_central = deflated}));
  EXPECT_EQ(parse(file).find("data/0")->method, 8);
}

TEST(Zip, TensOfThousandsOfRecordsAreSortedByNumber) {
  Records many;
  for (int i = 0; i < 70'000; ++i) many.emplace_back("data/" + std::to_string(i), i % 7 == 0 ? "x" : "");
  MemoryFile file(zip_archive(many));
  const ZipDirectory directory = parse(file);
  ASSERT_EQ(directory.records().size(), 70'000U);
  EXPECT_EQ(directory.records()[69'999].name, "data/69999");
  EXPECT_LE(file.largest_read(), 8U << 20);
}

std::function<void(ZipFields&)> on(const std::string& record, const std::function<void(ZipFields&)>& change) {
  return [=](ZipFields& fields) {
    if (fields.name == "archive/" + record) change(fields);
  };
}

struct Defect {
  const char* name;
  std::string file;
  const char* says;
  ErrorCode code = ErrorCode::bad_input;
};

TEST(Zip, DefectsAreNamed) {
  const std::string sound = zip_archive(three);
  std::string volume = sound;
  volume[volume.size() - 18] = 1;
  std::string uneven = sound;
  uneven[uneven.size() - 14] = 2;
  const Defect table[] = {
      {"cut by a byte", sound.substr(0, sound.size() - 1), "is truncated: a zip archive of"},
      {"bytes behind the end", sound + "x", "is truncated"},
      {"one volume of several", volume, "of several", ErrorCode::unsupported},
      {"two counts", uneven, "two numbers of records"},
      {"two end records that disagree",
       zip_archive(three, {.edit_end = [](ZipEnd& end) { end.directory_bytes = 0x1'0000'0000 + end.directory_bytes; }}), "does not end at"},
      {"directory beyond the file", zip_archive(three, {.edit_end = [](ZipEnd& end) { end.directory_at = 1'000'000'000; }}),
       "does not end at"},
      {"directory shifted", zip_archive(three, {.edit_end = [](ZipEnd& end) { end.directory_at += 7; }}), "does not end at"},
      {"directory at 2^63", zip_archive(three, {.edit_end = [](ZipEnd& end) { end.directory_at = (1ULL << 63) + 5; }}), "does not end at"},
      {"directory too short", zip_archive(three, {.edit_end = [](ZipEnd& end) { end.directory_bytes -= 46; }}), "does not end at"},
      {"2^60 records", zip_archive(three, {.edit_end = [](ZipEnd& end) { end.count = 1ULL << 60; }}),
       "can't hold 1152921504606846976 records"},
      {"one record too few", zip_archive(three, {.edit_end = [](ZipEnd& end) { end.count = 2; }}), "bytes behind its last record"},
      {"one record too many", zip_archive(three, {.edit_end = [](ZipEnd& end) { end.count = 4; }}), "its directory"},
      {"end record elsewhere", zip_archive(three, {.edit_end = [](ZipEnd& end) { end.end64_at = 1ULL << 62; }}),
       "the zip64 end record is said to be at"},
      {"end record missing", zip_archive(three, {.zip64 = true, .end64 = false}), "the zip64 end record is missing"},
      {"no records", zip_archive({}), "it holds no records"},
      {"record beyond the file", zip_archive(three, {.edit_central = on("data/0", [](ZipFields& f) { f.header_at = 0x7FFFFFF0; })}),
       "record 'archive/data/0' of 13 bytes at 2147483632"},
      {"record larger than the file",
       zip_archive(three, {.edit_central = on("data/0", [](ZipFields& f) { f.size_bytes = f.packed_bytes = 0x7FFFFFF0; })}),
       "goes beyond the directory"},
      {"record of 2^64 - 1 bytes",
       zip_archive(three, {.zip64 = true, .edit_central = on("data/0", [](ZipFields& f) { f.size_bytes = f.packed_bytes = ~0ULL; })}),
       "goes beyond the directory"},
      {"record larger than its place",
       zip_archive(three, {.edit_local = on("data.pkl", [](ZipFields& f) { f.packed_bytes = 20; }),
                           .edit_central = on("data.pkl", [](ZipFields& f) { f.size_bytes = f.packed_bytes = 20; })}),
       "where the next record begins"},
      {"two sizes", zip_archive(three, {.edit_central = on("data/0", [](ZipFields& f) { f.packed_bytes = 5; })}),
       "has two sizes, 5 and 13 bytes"},
      {"sizes that differ between headers", zip_archive(three, {.edit_local = on("data/0", [](ZipFields& f) { f.packed_bytes = 5; })}),
       "has 5 bytes by its own header and 13 by the directory"},
      {"two records at one place", zip_archive(three, {.edit_central = on("data/0", [](ZipFields& f) { f.header_at = 0; })}), "overlap"},
      {"record inside another", zip_archive(three, {.edit_central = on("data/0", [](ZipFields& f) { f.header_at = 13; })}), "overlap"},
      {"no local header", zip_archive(three, {.edit_central = on("data/0", [](ZipFields& f) { f.header_at += 1; })}),
       "no header of record 'archive/data/0'"},
      {"another name in the local header",
       zip_archive(three, {.edit_local = on("data/0", [](ZipFields& f) { f.name = "archive/data/9"; })}), "has another name"},
      {"a name twice", zip_archive({{"data/0", "a"}, {"data/0", "b"}}), "two records are named 'data/0'"},
      {"no folder", zip_archive({{"data.pkl", "a"}}, {.folder = ""}), "lies in no folder"},
      {"record outside the folder", zip_archive({{"archive/a", "a"}, {"archiv/b", "b"}}, {.folder = ""}),
       "lies outside the archive's folder 'archive'"},
      {"encrypted", zip_archive(three, {.edit_central = on("data/0", [](ZipFields& f) { f.flags |= 1; })}), "is encrypted",
       ErrorCode::unsupported},
      {"encrypted by the local header", zip_archive(three, {.edit_local = on("data/0", [](ZipFields& f) { f.flags |= 1; })}),
       "is encrypted", ErrorCode::unsupported},
      {"compressed by one header", zip_archive(three, {.edit_local = on("data/0", [](ZipFields& f) { f.method = 8; })}),
       "is compressed by one header"},
  };
  for (const Defect& row : table) {
    MemoryFile file(row.file);
    try {
      (void)parse(file);
      ADD_FAILURE() << row.name << ": accepted";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), row.code) << row.name;
      EXPECT_TRUE(std::string(error.what()).starts_with("file.pt: ")) << row.name;
      EXPECT_NE(std::string(error.what()).find(row.says), std::string::npos) << row.name << ": " << error.what();
    }
    EXPECT_LE(file.largest_read(), row.file.size()) << row.name;
  }
}

}  // namespace
}  // namespace unshard
