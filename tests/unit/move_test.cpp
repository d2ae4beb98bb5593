// Moving by several ranks: what goes wrong on one of them, schedules that could deadlock, memory and opens.
#include "unshard/move.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <mutex>
#include <numeric>
#include <thread>

#include "file_owners.h"
#include "move_state.h"
#include "support/foreseen.h"
#include "support/memory_file_system.h"
#include "support/stored_model.h"
#include "unshard/error.h"
#include "unshard/in_process_comm.h"
#include "unshard/publish.h"

namespace unshard::test {
namespace {

struct Way {
  IoMode io;
  bool home_readers;
};

const std::vector<Way> ways = {{IoMode::posix, false}, {IoMode::posix, true}, {IoMode::collective, false}, {IoMode::collective, true}};

/// Twelve f32 tensors in four shards (the rows of each in four parts), as bf16 in three output files.
class Job {
 public:
  explicit Job(const Way& way) : Job() {
    options.io = way.io;
    options.home_readers = way.home_readers;
  }
  Job() {
    for (std::uint64_t t = 0; t < 12; ++t) {
      const Shape shape{64, 40 + t};
      const TensorId id = model.add(DType::f32, shape);
      for (std::uint32_t f = 0; f < 4; ++f) model.store(id, {{f * 16, 0}, {16, shape[1]}}, f);
      targets.targets.push_back({"target" + std::to_string(t), DType::bf16, shape, {copy_of(id, shape)}});
    }
    options.threads = 2;
    options.buffer_bytes = 1 << 20;
  }

  /// Moves, and reads back if the move succeeds. Throws what every rank threw.
  void run(int ranks, std::uint64_t seed = 0, int ranks_per_node = 0) {
    const Layout layout = lay_out_for_test(targets, most_file_bytes, 100, 0);
    plan = make_plan(targets, layout, {.ranks = ranks, .window_bytes = 8192, .step_bytes = step_bytes, .boundary_bytes = 1024});
    if (shared_disk) {
      for (std::size_t f = 0; f < model.contents.size(); ++f) disk.put(model.source.files[f].path, model.contents[f]);
    }
    for (const OutputFile& file : layout.files)
      disk.put("/out/" + partial_name(file), file.header + std::string(file.size_bytes - file.header.size(), '\0'));
    if (before) before();
    InProcessOptions in_process;
    in_process.seed = seed;
    in_process.ranks_per_node = ranks_per_node;
    in_process.files = &disk;
    run_ranks(ranks, in_process, [&](Comm& comm) {
      FileSystem& files = views.empty() ? disk : *views[comm.node_of(comm.rank())];
      FileCache sources(files, model.source);
      const Catalog catalog = model.catalog_of(comm.rank(), ranks);
      if (headers_first) read_headers(comm, sources);
      const MoveNeeds here =
          move_needs(comm, model.source, catalog, targets, plan, options, options.home_readers ? Readers::homes : Readers::owners);
      if (comm.rank() == 0) needs = here;
      const ChunkTable chunks = send_chunks(comm, catalog, targets, plan);
      const MoveReport report = move(comm, sources, model.source, catalog, targets, plan, chunks, disk, "/out", options);
      expect_as_foreseen(comm, here, report);
      if (!options.read_back) verify(comm, disk, "/out", plan, report.extents, {.threads = 2});
    });
  }

  /// What read_catalog() opens.
  void read_headers(const Comm& comm, FileCache& sources) const {
    const std::vector<int> readers = file_owners(comm, model.source);
    for (std::uint32_t file = 0; file < readers.size(); ++file)
      if (readers[file] == comm.rank()) (void)sources.get(file);
  }

  void expect_complete() const {
    const std::vector<std::string> expected = expected_files(model, targets, plan.layout);
    for (std::size_t f = 0; f < expected.size(); ++f)
      EXPECT_TRUE(disk.content("/out/" + partial_name(plan.layout.files[f])) == expected[f]) << f;
  }

  StoredModel model{{"a.pt", "b.pt", "c.pt", "d.pt"}};
  Targets targets;
  Plan plan;
  MoveOptions options;
  std::uint64_t most_file_bytes = 25000;
  std::uint64_t step_bytes = 1024;
  bool shared_disk = true;
  bool headers_first = false;
  MemoryFileSystem disk;
  std::vector<std::unique_ptr<MemoryFileSystem>> views;  ///< by node; empty: everybody sees `disk`
  std::function<void()> before;                          ///< called when all files are there
  MoveNeeds needs;                                       ///< what was foreseen
};

/// Runs a job that must fail alike on all ranks, in all ways and with several numbers of ranks.
void expect_failure(ErrorCode code, const std::string& text, const std::function<void(Job&)>& prepare) {
  for (const Way& way : ways) {
    for (int ranks = 1; ranks <= 4; ++ranks) {
      Job job(way);
      prepare(job);
      try {
        job.run(ranks, static_cast<std::uint64_t>(ranks));
        ADD_FAILURE() << "no error with " << ranks << " ranks";
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), code) << error.what() << ", ranks " << ranks;
        EXPECT_NE(std::string(error.what()).find(text), std::string::npos) << error.what();
      }
    }
  }
}

TEST(Move, IsFreeOfDeadlocksUnderManySchedules) {
  for (std::uint64_t seed = 0; seed < 120; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Job job;
    job.options.io = ways[seed % 4].io;
    job.options.home_readers = ways[seed % 4].home_readers;
    ASSERT_NO_THROW(job.run(static_cast<int>(2 + seed % 3), seed, static_cast<int>(seed / 4 % 3)));
    job.expect_complete();
  }
}

TEST(Move, AFullDiskIsOneErrorEverywhere) {
  expect_failure(ErrorCode::no_space, "out1.safetensors",
                 [](Job& job) { job.before = [&job] { job.disk.fail(Call::write, "out1", 2, ErrorCode::no_space); }; });
}

TEST(Move, AReadThatFailsIsOneErrorEverywhere) {
  expect_failure(ErrorCode::io, "c.pt", [](Job& job) { job.before = [&job] { job.disk.fail(Call::read, "c.pt", 5); }; });
}

/// What is reported is believed by the next run: a rank that can't read goes on sending what it has not read.
TEST(Move, WhatIsReportedAsWrittenIsRightWhenAReaderFails) {
  std::size_t reported = 0, failed = 0;
  for (const Way& way : ways) {
    for (const std::uint64_t skip : {0, 1, 3, 7, 12, 20, 33, 54}) {
      SCOPED_TRACE(skip);
      Job job(way);
      job.before = [&job, skip] { job.disk.fail(Call::read, "c.pt", skip); };
      std::mutex mutex;
      std::vector<Extent> extents;
      job.options.written = [&](const Extent& extent) {
        const std::lock_guard lock(mutex);
        extents.push_back(extent);
      };
      try {
        job.run(4, skip);
      } catch (const Error&) {
        ++failed;
      }
      reported += extents.size();
      const std::vector<std::string> expected = expected_files(job.model, job.targets, job.plan.layout);
      for (const Extent& extent : extents) {
        const std::string written = job.disk.content("/out/" + partial_name(job.plan.layout.files[extent.file]));
        const auto length = static_cast<std::size_t>(extent.end - extent.begin);
        EXPECT_TRUE(written.substr(extent.begin, length) == expected[extent.file].substr(extent.begin, length)) << extent.begin;
      }
    }
  }
  EXPECT_GT(failed, 10U);
  EXPECT_GT(reported, 100U);
}

TEST(Move, AShardThatCantBeOpenedIsOneErrorEverywhere) {
  expect_failure(ErrorCode::io, "d.pt", [](Job& job) { job.before = [&job] { job.disk.fail(Call::open_for_reading, "d.pt"); }; });
}

TEST(Move, AnOutputThatCantBeOpenedIsOneErrorEverywhere) {
  expect_failure(ErrorCode::io, "out2", [](Job& job) { job.before = [&job] { job.disk.fail(Call::open_for_writing, "out2"); }; });
}

TEST(Move, ATruncatedShardIsBadInput) {
  expect_failure(ErrorCode::bad_input, "b.pt", [](Job& job) { job.model.contents[1].resize(job.model.contents[1].size() / 2); });
}

TEST(Move, AWriteThatLiesIsCaughtByReadingBack) {
  expect_failure(ErrorCode::verification, "out0.safetensors", [](Job& job) { job.before = [&job] { job.disk.lie("out0"); }; });
}

TEST(Move, AWriteThatLiesIsCaughtAsTheMoveGoesOn) {
  expect_failure(ErrorCode::verification, "out0.safetensors", [](Job& job) {
    job.options.read_back = true;
    job.before = [&job] { job.disk.lie("out0"); };
  });
}

TEST(Move, ADeviceThatRefusesWhatWasWrittenIsOneErrorEverywhere) {
  for (const bool read_back : {false, true}) {
    expect_failure(ErrorCode::io, "out1", [&](Job& job) {
      job.options.read_back = read_back;
      job.before = [&job] { job.disk.fail(Call::drop_cache, "out1"); };
    });
  }
}

TEST(Move, ReadsBackWhatAnotherRankHasWrittenForIt) {
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Job job;
    job.options.io = IoMode::collective;
    job.options.home_readers = seed / 2 % 2 == 1;
    job.options.read_back = true;
    job.options.trail_bytes = 0;
    job.run(static_cast<int>(2 + seed % 3), seed);
    job.expect_complete();
  }
}

TEST(Move, RanksThatWriteTogetherGoOnWhileOneWaitsForTheDevice) {
  // About four times 16 rounds of both ranks, after which they compare: what was on its way is not enough.
  constexpr std::uint64_t more_bytes = 16000;
  Job job({IoMode::collective, false});
  job.most_file_bytes = 1000000;  // one file, of both ranks
  job.step_bytes = 128;
  job.options.trail_bytes = 0;
  std::atomic<std::uint64_t> written = 0;
  job.options.written = [&](const Extent& extent) { written += extent.end - extent.begin; };
  std::once_flag first;
  bool went_on = false;
  job.disk.at_drop_cache([&] {
    std::call_once(first, [&] {
      const std::uint64_t goal = written + more_bytes;
      const auto patience = std::chrono::steady_clock::now() + std::chrono::seconds(20);
      while (written < goal && std::chrono::steady_clock::now() < patience) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      went_on = written >= goal;
    });
  });
  job.run(2);
  EXPECT_TRUE(went_on);
  job.expect_complete();
}

/// As above; what a device that stands still lets pile up is bounded.
TEST(Move, RanksThatWriteTogetherWaitForADeviceThatIsFarBehind) {
  constexpr std::uint64_t mebibyte = std::uint64_t{1} << 20;
  Job job({IoMode::collective, false});
  const Shape wide{64, 400'000};  // 49 MiB as bf16
  const TensorId id = job.model.add(DType::bf16, wide);
  job.model.store(id, {{0, 0}, wide}, 0);
  job.targets.targets = {{"wide", DType::bf16, wide, {copy_of(id, wide)}}};
  job.most_file_bytes = 60 * mebibyte;
  job.step_bytes = mebibyte / 16;
  job.options.buffer_bytes = 4 * mebibyte;
  job.options.trail_bytes = 0;
  std::atomic<std::uint64_t> written = 0;
  job.options.written = [&](const Extent& extent) { written += extent.end - extent.begin; };
  std::once_flag first;
  std::uint64_t at_first = 0, later = 0;
  job.disk.at_drop_cache([&] {
    std::call_once(first, [&] {
      at_first = written;
      for (int quiet = 0; quiet < 3; quiet = later == written ? quiet + 1 : 0) {  // until nothing is written any more
        later = written;
        std::this_thread::sleep_for(std::chrono::milliseconds(300));
      }
    });
  });
  job.run(2);
  EXPECT_GE(later - at_first, 16 * mebibyte);
  EXPECT_LE(later - at_first, 2 * (16 + 2) * mebibyte);  // of both ranks, and what they write between two comparisons
  job.expect_complete();
}

TEST(Move, ReadsBackEveryByteOnce) {
  for (const Way& way : ways) {
    for (int ranks = 1; ranks <= 4; ++ranks) {
      Job job(way);
      job.options.read_back = true;
      job.options.trail_bytes = 5000;
      job.views.push_back(job.disk.other_node({}));  // only shards are read through it
      job.run(ranks, static_cast<std::uint64_t>(ranks));
      const std::vector<std::uint64_t> written = bytes_by_rank(job.plan);
      EXPECT_EQ(job.disk.counters().read_bytes, std::accumulate(written.begin(), written.end(), std::uint64_t{0}));
    }
  }
}

TEST(Move, RanksOfOneNodeShareItsPageCache) {
  for (int ranks_per_node = 1; ranks_per_node <= 4; ++ranks_per_node) {
    InProcessOptions options;
    options.ranks_per_node = ranks_per_node;
    run_ranks(4, options, [&](Comm& comm) {
      EXPECT_EQ(share_page_cache(comm, {}), ranks_per_node == 4);
      EXPECT_EQ(share_page_cache(comm, {2, 3}), ranks_per_node != 1);  // those that see the target are on one node
    });
  }
}

TEST(Move, ASignalOnOneRankStopsAllWithItsCode) {
  expect_failure(static_cast<ErrorCode>(128 + SIGTERM), "SIGTERM", [](Job& job) { job.options.signal = [] { return SIGTERM; }; });
}

TEST(Move, NodeLocalShardsAreReadWhereTheyLie) {
  Job job;
  job.shared_disk = false;
  job.options.home_readers = true;
  for (std::uint32_t node = 0; node < 2; ++node) {
    job.views.push_back(job.disk.other_node({"/in"}));
    for (std::uint32_t f = node * 2; f < node * 2 + 2; ++f) {
      job.model.source.files[f].nodes = {node};
      job.views[node]->put(job.model.source.files[f].path, job.model.contents[f]);
    }
  }
  job.run(4, 1, 2);
  job.expect_complete();
}

TEST(Move, HomeReadersOpenEachShardOnce) {
  for (int ranks = 1; ranks <= 4; ++ranks) {
    Job job;
    job.options.home_readers = true;
    job.views.push_back(job.disk.other_node({}));  // only shards are opened through it
    job.run(ranks, 1);
    EXPECT_EQ(job.views[0]->counters().opens, 4U);
  }
}

TEST(Needs, AreTheOpensOfTheMove) {
  for (const Way& way : ways) {
    for (int ranks = 1; ranks <= 4; ++ranks) {
      Job job(way);
      job.headers_first = true;
      for (int rank = 0; rank < ranks; ++rank) job.views.push_back(job.disk.other_node({}));  // one rank a node, the disk is shared
      for (ShardFile& file : job.model.source.files) file.nodes = {0, 1, 2, 3};
      job.run(ranks, 1, 1);
      std::uint64_t opens = 0, most = 0;
      for (const auto& view : job.views) {
        opens += view->counters().opens;
        most = std::max<std::uint64_t>(most, view->counters().opens);
      }
      EXPECT_EQ(job.needs.opens, opens) << ranks;
      EXPECT_EQ(job.needs.most_opens, most) << ranks;
      EXPECT_EQ(job.needs.messages > 0, way.home_readers && ranks > 1) << ranks;
    }
  }
}

TEST(Needs, DoNotDependOnWhoCountsThem) {
  for (const bool home_readers : {false, true}) {
    Job job;
    job.options.home_readers = home_readers;
    job.run(4);
    for (int size = 1; size <= 7; ++size) {
      run_ranks(size, {}, [&](Comm& comm) {
        const Catalog catalog = job.model.catalog_of(comm.rank(), size);
        const MoveNeeds needs = move_needs(comm, job.model.source, catalog, job.targets, job.plan, job.options,
                                           home_readers ? Readers::homes : Readers::owners);
        EXPECT_EQ(needs.other_ranks, size != 4);
        EXPECT_EQ(needs.opens, job.needs.opens) << size;
        EXPECT_EQ(needs.most_opens, job.needs.most_opens) << size;
        EXPECT_EQ(needs.read_bytes, job.needs.read_bytes) << size;
        EXPECT_EQ(needs.messages, job.needs.messages) << size;
        EXPECT_EQ(needs.exchanged_bytes, job.needs.exchanged_bytes) << size;
      });
    }
  }
}

TEST(Move, ReportsTheBytesOfAllRanksAsProgressOnEachOfThem) {
  Job job;
  std::atomic<std::uint64_t> reported{0};
  job.options.progress = [&](std::uint64_t bytes) { reported += bytes; };
  constexpr int ranks = 2;
  job.run(ranks);
  std::uint64_t all = 0;
  for (const std::uint64_t bytes : bytes_by_rank(job.plan)) all += bytes;
  EXPECT_EQ(reported, ranks * all);
}

TEST(Move, NoByteOfAShardIsReadTwice) {
  for (const Way& way : ways) {
    Job job(way);
    job.views.push_back(job.disk.other_node({}));  // only shards are read through it
    job.run(3);
    std::uint64_t payload = 0;
    for (const Chunk& chunk : job.model.chunks) payload += chunk.record_bytes;
    EXPECT_EQ(job.views[0]->counters().read_bytes, payload);
  }
}

}  // namespace
}  // namespace unshard::test
