// --cache-dir: the second command needs no header, and what it finds is what the headers say, whatever lies in the cache.
#include "catalog_cache.h"

#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>

#include "catalog_tables.h"
#include "support/command_run.h"
#include "unshard/merge.h"

namespace unshard {
namespace {

using testing::content;
using testing::RecordingLog;
using testing::TemporaryFolder;

struct Checked {
  std::string lines, json;
  std::uint64_t shard_opens = 0;  ///< of rank 0
};

class CatalogCache : public ::testing::Test {
 protected:
  CatalogCache() {
    folder_.copy(UNSHARD_CASES "/fsdp/hybrid_2x2/input", "input");
    options_.input.local_dirs = {folder_ / "input"};
    options_.input.cache_dir = folder_ / "cache";
  }

  Checked run(int ranks = 1) {
    Checked result;
    run_ranks(ranks, {}, [&](Comm& comm) {
      const auto files = posix_file_system();
      RecordingLog log;
      const CheckResult checked = check({comm, *files, log}, options_);
      EXPECT_TRUE(checked.complete);
      if (comm.rank() == 0) result = {log.lines, checked.json, files->counters().opens};
    });
    return result;
  }

  [[nodiscard]] std::string cache_file() const {
    std::string found;
    for (const auto& entry : std::filesystem::directory_iterator(options_.input.cache_dir)) {
      EXPECT_TRUE(found.empty()) << "more than one file: " << found << ", " << entry.path();
      found = entry.path();
    }
    return found;
  }

  TemporaryFolder folder_;
  CheckOptions options_;
};

TEST_F(CatalogCache, TheSecondCommandFindsTheSameWithoutAnyHeader) {
  const Checked first = run();
  for (const int ranks : {1, 2, 3}) {
    const Checked second = run(ranks);
    EXPECT_EQ(second.json, first.json);
    EXPECT_EQ(second.lines, first.lines);
    if (ranks == 1) {
      EXPECT_LT(second.shard_opens, first.shard_opens);
    }
  }
}

TEST_F(CatalogCache, WhatManyRanksHaveKeptIsWhatOneKeeps) {
  (void)run(3);
  const std::string kept = content(cache_file());
  std::filesystem::remove(cache_file());
  (void)run(1);
  EXPECT_TRUE(content(cache_file()) == kept);
}

TEST_F(CatalogCache, AFileThatHasChangedIsReadAgain) {
  const Checked first = run();
  const std::string shard = folder_ / "input/model_world_size_4_rank_1.pt";
  std::filesystem::last_write_time(shard, std::filesystem::last_write_time(shard) + std::chrono::seconds(5));
  const Checked second = run(2);
  EXPECT_EQ(second.json, first.json);
  EXPECT_NE(second.lines.find("out of date"), std::string::npos) << second.lines;
  EXPECT_EQ(run().lines.find("ignored"), std::string::npos);
}

TEST_F(CatalogCache, ADamagedFileIsIgnoredWithOneLineAndWrittenAgain) {
  const Checked first = run();
  const std::string path = cache_file(), whole = content(path);
  for (const std::size_t at :
       {std::size_t{0}, std::size_t{9}, std::size_t{17}, std::size_t{520}, std::size_t{2000}, whole.size() - 1, whole.size()}) {
    std::string damaged = whole;
    if (at < whole.size()) {
      damaged[at] = static_cast<char>(damaged[at] ^ 1);
    } else {
      damaged.resize(whole.size() / 2);
    }
    std::ofstream(path, std::ios::binary) << damaged;
    const Checked again = run();
    EXPECT_EQ(again.json, first.json) << at;
    EXPECT_NE(again.lines.find("--cache-dir: "), std::string::npos) << at;
    EXPECT_TRUE(content(path) == whole) << at;
  }
}

TEST_F(CatalogCache, AFolderThatCannotBeWrittenIsAWarning) {
  std::ofstream(folder_ / "cache") << "a file";
  EXPECT_NE(run().lines.find("warning: --cache-dir"), std::string::npos);
}

/// A catalog of one tensor in one file.
std::vector<Hdf5Column> small_tables(const std::function<void(CatalogContent&, Chunk&)>& change) {
  CatalogContent content;
  content.format = "fsdp";
  content.files = {{"/a", 1000, 5, 6}};
  content.tensors = {{"w", DType::f32, {10, 4}, 0}};
  content.notes = {{Severity::note, "a", "b"}};
  content.facts = {{"n", 3}};
  Chunk chunk;
  chunk.box = {{0, 0}, {10, 4}};
  chunk.strides = {4, 1};
  chunk.position = chunk.record_position = 64;
  chunk.record_bytes = 160;
  change(content, chunk);
  return tables_of(content, std::vector{chunk});
}

TEST(CatalogTables, GiveBackWhatWentIn) {
  const CatalogContent back = content_of(small_tables([](CatalogContent&, Chunk&) {}));
  EXPECT_EQ(back.files[0].mtime_ns, 5);
  EXPECT_EQ(back.tensors[0].shape, (Shape{10, 4}));
  EXPECT_EQ(back.records[0].count(), 1u);
  EXPECT_EQ(back.notes[0].text, "b");
  EXPECT_EQ(back.facts.at("n"), 3u);
}

TEST(CatalogTables, RowsThatNoHeaderCouldGiveAreRefused) {
  const std::vector<std::function<void(CatalogContent&, Chunk&)>> lies{
      [](CatalogContent&, Chunk& c) { c.tensor = 1; },
      [](CatalogContent&, Chunk& c) { c.file = 1; },
      [](CatalogContent&, Chunk& c) { c.position = 900; },
      [](CatalogContent&, Chunk& c) { c.position = ~std::uint64_t{0} - 10; },
      [](CatalogContent&, Chunk& c) {
        c.strides = {~std::uint64_t{0}, 1};
      },
      [](CatalogContent&, Chunk& c) {
        c.box.offset = {1, 0};
      },
      [](CatalogContent&, Chunk& c) {
        c.box.extent = {0, 4};
      },
      [](CatalogContent&, Chunk& c) {
        c.box.extent = {~std::uint64_t{0}, 4};
      },
      [](CatalogContent&, Chunk& c) { c.record_bytes = 2000; },
      [](CatalogContent& t, Chunk&) {
        t.tensors[0].shape = {~std::uint64_t{0}, 16};
      },
      [](CatalogContent& t, Chunk&) { t.tensors[0].dtype = static_cast<DType>(99); },
      [](CatalogContent& t, Chunk&) { t.files.clear(); },
      [](CatalogContent& t, Chunk&) { t.tensors.clear(); },
  };
  for (std::size_t i = 0; i < lies.size(); ++i) EXPECT_THROW((void)content_of(small_tables(lies[i])), Error) << i;
  std::vector<Hdf5Column> columns = small_tables([](CatalogContent&, Chunk&) {});
  for (std::size_t left_out = 0; left_out < columns.size(); ++left_out) {
    std::vector<Hdf5Column> others = columns;
    others.erase(others.begin() + static_cast<std::ptrdiff_t>(left_out));
    EXPECT_THROW((void)content_of(others), Error) << columns[left_out].name;
  }
}

/// How many catalogs a command keeps, and that it writes the same from them.
std::size_t kept_by(const std::function<void(const Session& session, const MergeOptions& options)>& command) {
  const TemporaryFolder folder;
  MergeOptions options;
  options.input.cache_dir = folder / "cache";
  for (const char* target : {"first", "second"}) {
    options.target_dir = folder / target;
    (void)testing::run_command(2, [&](const Session& session) { command(session, options); });
  }
  EXPECT_EQ(content(folder / "first/adapter_model.safetensors"), content(folder / "second/adapter_model.safetensors"));
  std::size_t count = 0;
  if (!std::filesystem::exists(options.input.cache_dir)) return count;
  for (const auto& entry : std::filesystem::directory_iterator(options.input.cache_dir)) count += entry.is_regular_file() ? 1 : 0;
  return count;
}

TEST(CacheOfAdapters, CommandsThatWriteAdaptersKeepCatalogsToo) {
  const std::string cases = UNSHARD_CASES "/lora/";
  EXPECT_EQ(kept_by([&](const Session& session, MergeOptions options) {
              options.input.local_dirs = {cases + "fsdp2_extract_lora_command/input"};
              options.lora_alpha = 8;
              (void)extract_lora(session, {options, "", "", 0});
            }),
            1U);
  EXPECT_EQ(kept_by([&](const Session& session, const MergeOptions& options) {
              (void)extract_lora(session, {options, cases + "svd_round_trip/input/base", cases + "svd_round_trip/input/finetuned", 4});
            }),
            2U);
  EXPECT_EQ(kept_by([&](const Session& session, MergeOptions options) {
              options.input.local_dirs = {cases + "two_adapters_to_one/input/base"};
              options.adapters = {{cases + "two_adapters_to_one/input/one", 1}, {cases + "two_adapters_to_one/input/two", 1}};
              MergeLoraOptions combined;
              combined.merge = options;
              combined.writes_adapter = true;
              (void)merge_lora(session, combined);
            }),
            1U);
}

}  // namespace
}  // namespace unshard
