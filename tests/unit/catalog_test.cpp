// Catalogs of checkpoints written by torch: the pieces, put together, are the tensors that transformers saved; for any number of ranks and
// whoever sees which file.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <mutex>
#include <nlohmann/json.hpp>

#include "chunk_order.h"
#include "file_owners.h"
#include "stored_elements.h"
#include "support/node_files.h"
#include "tensor_table.h"
#include "unshard/checkpoint_format.h"
#include "unshard/file_cache.h"
#include "unshard/in_process_comm.h"

namespace unshard {
namespace {

using test::NodeFiles;
using test::ScratchFolder;
using Names = std::vector<std::string>;

const std::string cases = UNSHARD_CASES;

/// What all ranks of a job know together.
struct Whole {
  Source source;
  Catalog catalog;  ///< the chunks of all ranks
  std::uint64_t opens = 0;
};

struct Job {
  int ranks = 1;
  int ranks_per_node = 0;
  std::vector<std::string> disks{""};  ///< of each node
  CoverageOptions options;
};

Whole read_whole(const Names& folders, const Job& job = {}) {
  std::vector<Whole> of_rank(static_cast<std::size_t>(job.ranks));
  InProcessOptions in_process;
  in_process.ranks_per_node = job.ranks_per_node;
  run_ranks(job.ranks, in_process, [&](Comm& comm) {
    NodeFiles disk(job.disks[static_cast<std::size_t>(comm.node_of(comm.rank())) % job.disks.size()]);
    Whole& mine = of_rank[static_cast<std::size_t>(comm.rank())];
    mine.source = discover(list_tree(comm, disk, folders), "auto");
    FileCache files(disk, mine.source);
    const std::uint64_t before = disk.counters().opens;
    mine.catalog = read_catalog(comm, files, mine.source);
    mine.opens = disk.counters().opens - before;
    prove_coverage(comm, files, mine.source, mine.catalog, job.options);
  });
  Whole whole = std::move(of_rank.front());
  for (std::size_t rank = 1; rank < of_rank.size(); ++rank) {
    const Catalog& other = of_rank[rank].catalog;
    EXPECT_EQ(other.tensors.size(), whole.catalog.tensors.size());
    EXPECT_EQ(other.findings.size(), whole.catalog.findings.size());
    EXPECT_EQ(other.objects.size(), whole.catalog.objects.size());
    whole.catalog.chunks.insert(whole.catalog.chunks.end(), other.chunks.begin(), other.chunks.end());
    whole.opens += of_rank[rank].opens;
  }
  return whole;
}

/// Everything that must not depend on the number of ranks, as text.
std::string text_of(const Whole& whole) {
  std::string text;
  for (const TensorRow& row : whole.catalog.tensors)
    text += row.name + " " + std::string(info(row.dtype).name) + " " + to_string(row.shape) + "\n";
  for (const Chunk& chunk : whole.catalog.chunks) {
    text += std::to_string(chunk.tensor) + " " + std::to_string(chunk.file) + " " + to_string(chunk.box) + " " +
            std::to_string(chunk.position) + " " + to_string(chunk.strides) + " " + std::to_string(chunk.record_position) + " " +
            std::to_string(chunk.record_bytes) + " " + std::to_string(chunk.record_crc) + "\n";
  }
  for (const Finding& finding : whole.catalog.findings) text += finding.subject + ": " + finding.text + "\n";
  for (const ObjectNote& note : whole.catalog.objects) text += std::to_string(note.file) + " " + note.key + " " + note.what + "\n";
  return text;
}

Names errors_of(const Whole& whole) {
  Names texts;
  for (const auto& findings : {whole.source.findings, whole.catalog.findings}) {
    for (const Finding& finding : findings) {
      if (finding.severity == Severity::error) texts.push_back(finding.subject + ": " + finding.text);
    }
  }
  return texts;
}

bool any_says(const Names& texts, const std::string& part) {
  return std::any_of(texts.begin(), texts.end(), [&](const std::string& text) { return text.find(part) != std::string::npos; });
}

/// The tensor's bytes, put together from its pieces element by element.
std::string assembled(const Whole& whole, FileSystem& disk, TensorId id) {
  const TensorRow& row = whole.catalog.tensors[id];
  const std::size_t size = info(row.dtype).size_bytes;
  std::string bytes(volume(row.shape) * size, '\xee');
  const Shape strides = row_major_strides(row.shape);
  for (const Chunk& chunk : whole.catalog.chunks) {
    if (chunk.tensor != id) continue;
    std::string piece;
    const auto file = disk.open_for_reading(whole.source.files[chunk.file].path);
    read_elements(*file, chunk, row.dtype, {},
                  [&](std::span<std::byte> some) { piece.append(reinterpret_cast<const char*>(some.data()), some.size()); });
    for (std::uint64_t element = 0; element < volume(chunk.box.extent); ++element) {
      std::uint64_t rest = element, to = 0;
      for (std::size_t d = row.shape.size(); d-- > 0;) {
        to += (chunk.box.offset[d] + rest % chunk.box.extent[d]) * strides[d];
        rest /= chunk.box.extent[d];
      }
      std::memcpy(bytes.data() + to * size, piece.data() + element * size, size);
    }
  }
  return bytes;
}

struct Expected {
  std::string dtype;
  std::vector<std::uint64_t> shape;
  std::string bytes;
};

std::map<std::string, Expected> expected_tensors(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  const std::string all((std::istreambuf_iterator<char>(in)), {});
  std::uint64_t length = 0;
  std::memcpy(&length, all.data(), 8);
  std::map<std::string, Expected> tensors;
  const auto header = nlohmann::json::parse(all.substr(8, length));
  for (const auto& [name, entry] : header.items()) {
    if (name == "__metadata__") continue;
    const auto begin = entry["data_offsets"][0].get<std::uint64_t>(), end = entry["data_offsets"][1].get<std::uint64_t>();
    tensors[name] = {entry["dtype"], entry["shape"], all.substr(8 + length + begin, end - begin)};
  }
  return tensors;
}

/// A case whose names and types come out as they are stored.
struct RealCase {
  const char* name;
  std::vector<const char*> folders;
};

class RealCheckpoint : public ::testing::TestWithParam<RealCase> {};

TEST_P(RealCheckpoint, HoldsTheTensorsThatTransformersSaved) {
  const std::string folder = cases + "/fsdp/" + GetParam().name;
  Names roots;
  for (const char* root : GetParam().folders) roots.push_back(folder + "/" + root);
  std::string first;
  for (const int ranks : {1, 2, 3, 4}) {
    Job job;
    job.ranks = ranks;
    const Whole whole = read_whole(roots, job);
    EXPECT_EQ(errors_of(whole), Names{});
    EXPECT_EQ(whole.opens, whole.source.files.size());
    EXPECT_TRUE(std::is_sorted(whole.catalog.chunks.begin(), whole.catalog.chunks.end(), chunk_before));
    if (ranks == 1) {
      first = text_of(whole);
      NodeFiles disk("");
      std::size_t compared = 0;
      const auto expected = expected_tensors(folder + "/expected/model.safetensors");
      for (TensorId id = 0; id < whole.catalog.tensors.size(); ++id) {
        const TensorRow& row = whole.catalog.tensors[id];
        const auto found = expected.find(row.name);
        if (found == expected.end()) continue;
        EXPECT_EQ(info(row.dtype).safetensors, found->second.dtype) << row.name;
        EXPECT_EQ(std::vector<std::uint64_t>(row.shape.begin(), row.shape.end()), found->second.shape) << row.name;
        EXPECT_TRUE(assembled(whole, disk, id) == found->second.bytes) << row.name;
        ++compared;
      }
      EXPECT_EQ(compared, expected.size());
    }
    EXPECT_EQ(text_of(whole), first) << ranks;
  }
}

INSTANTIATE_TEST_SUITE_P(Fsdp, RealCheckpoint,
                         ::testing::Values(RealCase{"two_ranks_bf16", {"input"}}, RealCase{"tensor_parallel_2x2", {"input"}},
                                           RealCase{"hybrid_2x2", {"input"}}, RealCase{"uneven_3_over_4", {"input"}},
                                           RealCase{"uneven_5_over_2", {"input"}}, RealCase{"shard_by_columns", {"input"}},
                                           RealCase{"fsdp1_two_ranks", {"input"}}, RealCase{"fsdp1_four_ranks_uneven", {"input"}},
                                           RealCase{"fsdp1_device_mesh", {"input"}}, RealCase{"mixed_plain_and_sharded", {"input"}},
                                           RealCase{"small_buffers", {"input"}}, RealCase{"zero_dim_buffer", {"input"}},
                                           RealCase{"strided_locals", {"input"}}, RealCase{"single_rank_plain", {"input"}},
                                           RealCase{"ones_norm", {"input"}}, RealCase{"two_node_folders", {"node_a", "node_b"}},
                                           RealCase{"run_and_step_folders", {"input"}}, RealCase{"parameters", {"input"}}),
                         [](const auto& tested) { return std::string(tested.param.name); });

TEST(ReadCatalog, NodeLocalFilesAreReadByTheNodesThatSeeThem) {
  const std::string input = cases + "/fsdp/tensor_parallel_2x2/input";
  ScratchFolder left, right;
  left.copy(input + "/model_world_size_4_rank_0.pt", "c/model_world_size_4_rank_0.pt");
  left.copy(input + "/model_world_size_4_rank_3.pt", "c/model_world_size_4_rank_3.pt");
  right.copy(input + "/model_world_size_4_rank_1.pt", "c/model_world_size_4_rank_1.pt");
  right.copy(input + "/model_world_size_4_rank_2.pt", "c/model_world_size_4_rank_2.pt");
  ScratchFolder both;
  both.copy(input, "c");
  Job shared;
  shared.disks = {both.path()};
  const std::string expected = text_of(read_whole({"/c"}, shared));
  for (const int ranks_per_node : {1, 2}) {
    Job job;
    job.ranks = 2 * ranks_per_node;
    job.ranks_per_node = ranks_per_node;
    job.disks = {left.path(), right.path()};
    const Whole whole = read_whole({"/c"}, job);
    EXPECT_EQ(errors_of(whole), Names{});
    EXPECT_EQ(text_of(whole), expected);
  }
}

TEST(ReadCatalog, OneFileOnTwoNodesIsReadOnceAndTwoFilesAreRefusedWithBothPlaces) {
  const std::string input = cases + "/fsdp/buffers_differ/input";  // four files of one size
  ScratchFolder left, right, wrong;
  left.copy(input, "c");
  right.copy(input + "/model_world_size_4_rank_1.pt", "c/model_world_size_4_rank_1.pt");
  wrong.copy(input + "/model_world_size_4_rank_2.pt", "c/model_world_size_4_rank_1.pt");
  Job job;
  job.ranks = 2;
  job.ranks_per_node = 1;
  job.options.compare_payload = false;
  job.disks = {left.path(), right.path()};
  EXPECT_FALSE(any_says(errors_of(read_whole({"/c"}, job)), "two different files"));
  job.disks = {left.path(), wrong.path()};
  EXPECT_TRUE(any_says(errors_of(read_whole({"/c"}, job)), "model_world_size_4_rank_1.pt: there are two different files of this name"));
}

TEST(ReadCatalog, NamesEveryFileThatCanNotBeReadAndCutsTheList) {
  ScratchFolder disk;
  for (int rank = 0; rank < 60; ++rank) disk.write("c/model_world_size_60_rank_" + std::to_string(rank) + ".pt", "no zip at all");
  std::string first;
  for (const int ranks : {1, 2, 4}) {
    Job job;
    job.ranks = ranks;
    job.disks = {disk.path()};
    const Whole whole = read_whole({"/c"}, job);
    const Names errors = errors_of(whole);
    EXPECT_EQ(errors.size(), 21U);
    EXPECT_TRUE(any_says(errors, "model_world_size_60_rank_7.pt: "));
    EXPECT_TRUE(any_says(errors, "40 more files can't be read: ranks 20-59"));
    if (ranks == 1) first = text_of(whole);
    EXPECT_EQ(text_of(whole), first);
  }
}

TEST(ReadCatalog, RefusesFlatParametersByName) {
  for (const int ranks : {1, 2}) {
    Job job;
    job.ranks = ranks;
    const Whole whole = read_whole({cases + "/fsdp/fsdp1_local_state_dict/input"}, job);
    EXPECT_TRUE(any_says(errors_of(whole), "flat parameter"));
    EXPECT_EQ(whole.catalog.findings.front().code, ErrorCode::unsupported);
    EXPECT_TRUE(whole.catalog.tensors.empty());
  }
}

TEST(ReadCatalog, NamesTheRankWhosePlainCopyDiffers) {
  for (const int ranks : {1, 2, 3}) {
    Job job;
    job.ranks = ranks;
    const Names errors = errors_of(read_whole({cases + "/fsdp/buffers_differ/input"}, job));
    ASSERT_EQ(errors.size(), 1U);
    EXPECT_TRUE(any_says(errors, "model.layers.1.std_scale: the copy of rank 2 differs")) << errors[0];
  }
}

TEST(ReadCatalog, DeepNamesTheReplicaThatDiffers) {
  for (const int ranks : {1, 2}) {
    Job job;
    job.ranks = ranks;
    job.options.deep = true;
    const Names errors = errors_of(read_whole({cases + "/fsdp/hybrid_replica_differs/input"}, job));
    EXPECT_TRUE(any_says(errors, "model.layers.1.mlp.up_proj.weight: the copy of rank 3 differs"));
    EXPECT_EQ(errors_of(read_whole({cases + "/fsdp/hybrid_2x2/input"}, job)), Names{});
  }
}

TEST(ReadCatalog, FilesOfTwoModelsContradictEachOther) {
  ScratchFolder disk;
  disk.copy(cases + "/fsdp/two_ranks_bf16/input/model_world_size_2_rank_0.pt", "c/model_world_size_2_rank_0.pt");
  disk.copy(cases + "/fsdp/uneven_5_over_2/input/model_world_size_2_rank_1.pt", "c/model_world_size_2_rank_1.pt");
  std::string first;
  for (const int ranks : {1, 2, 3}) {
    Job job;
    job.ranks = ranks;
    job.disks = {disk.path()};
    const Whole whole = read_whole({"/c"}, job);
    EXPECT_TRUE(any_says(errors_of(whole), "in model_world_size_2_rank_0.pt but"));
    if (ranks == 1) first = text_of(whole);
    EXPECT_EQ(text_of(whole), first);
  }
}

TEST(UniteTables, OrderIsThatOfTheFilesWhoeverReadThem) {
  Source source;
  for (const char* label : {"f0", "f1", "f2"}) source.files.push_back({"", label, 0, 0, {0}, {}});
  const auto seen = [](const char* name, FileId file, std::uint64_t position, Shape shape = {4}) {
    return SeenTensor{name, {file, position, DType::f32, shape}, std::nullopt};
  };
  // f0 lists d, b; f1 lists a, b; f2 lists c, b, a, where a has another shape.
  const std::vector<SeenTensor> f0{seen("d", 0, 0), seen("b", 0, 1)}, f1{seen("a", 1, 0), seen("b", 1, 1)};
  const std::vector<SeenTensor> f2{seen("c", 2, 0), seen("b", 2, 1), seen("a", 2, 2, {5})};
  run_ranks(4, {}, [&](Comm& comm) {
    const std::vector<SeenTensor> of_rank[] = {f2, {}, f0, f1};
    const UnitedTable table = unite_tables(comm, source, of_rank[comm.rank()]);
    Names names;
    for (const TensorRow& row : table.rows) names.push_back(row.name + " " + to_string(row.shape));
    EXPECT_EQ(names, (Names{"d [4]", "b [4]", "a [4]", "c [4]"}));
    EXPECT_EQ(table.contradictory, (std::vector<bool>{false, false, true, false}));
    ASSERT_EQ(table.findings.size(), 1U);
    EXPECT_EQ(table.findings[0].subject, "a");
    EXPECT_NE(table.findings[0].text.find("[4] in f1 but float32 [5] in f2"), std::string::npos) << table.findings[0].text;
    if (comm.rank() == 0) {
      EXPECT_EQ(table.ids, (std::vector<TensorId>{3, 1, 2}));
    }
  });
}

/// Counts what arrives at a rank.
class CountingComm final : public Comm {
 public:
  explicit CountingComm(Comm& comm) : comm_(comm) {}
  [[nodiscard]] int rank() const override { return comm_.rank(); }
  [[nodiscard]] int size() const override { return comm_.size(); }
  [[nodiscard]] int node_of(int rank) const override { return comm_.node_of(rank); }
  [[nodiscard]] int node_count() const override { return comm_.node_count(); }
  [[nodiscard]] const std::string& host_of(int rank) const override { return comm_.host_of(rank); }
  void barrier() override { comm_.barrier(); }
  std::uint64_t reduce_all(std::uint64_t value, Reduction how) override { return comm_.reduce_all(value, how); }
  void broadcast(Bytes& data, int root) override {
    comm_.broadcast(data, root);
    received_bytes += data.size();
  }
  std::vector<Bytes> gather_all(const Bytes& mine) override { return counted(comm_.gather_all(mine)); }
  std::vector<Bytes> gather(const Bytes& mine, int root) override { return counted(comm_.gather(mine, root)); }
  std::vector<Bytes> all_to_all(std::vector<Bytes> to_each) override { return counted(comm_.all_to_all(std::move(to_each))); }
  std::unique_ptr<Request> send(int to, int tag, std::span<const std::byte> data) override { return comm_.send(to, tag, data); }
  std::unique_ptr<Request> receive(int from, int tag, std::span<std::byte> data) override { return comm_.receive(from, tag, data); }
  std::unique_ptr<Comm> split(int color) override { return comm_.split(color); }
  std::unique_ptr<SharedFile> open_shared(const std::string& path, const std::vector<std::pair<std::string, std::string>>& hints) override {
    return comm_.open_shared(path, hints);
  }

  std::uint64_t received_bytes = 0;

 private:
  std::vector<Bytes> counted(std::vector<Bytes> parts) {
    for (const Bytes& part : parts) received_bytes += part.size();
    return parts;
  }
  Comm& comm_;
};

TEST(UniteTables, NoRankHoldsTheTablesOfAllOthers) {
  // Sixteen ranks whose tables differ in their order only: together 16 times the union.
  constexpr int ranks = 16;
  constexpr std::size_t tensors = 1000;
  Source source;
  for (int f = 0; f < ranks; ++f) source.files.push_back({"", "f" + std::to_string(f), 0, 0, {0}, {}});
  std::array<std::uint64_t, ranks> received{};
  run_ranks(ranks, {}, [&](Comm& comm) {
    const auto rank = static_cast<std::size_t>(comm.rank());
    std::vector<SeenTensor> mine;
    for (std::size_t i = 0; i < tensors; ++i)
      mine.push_back({"tensor" + std::to_string(1000 + (i + rank) % tensors), {static_cast<FileId>(rank), i, DType::f32, {4}}, std::nullopt});
    CountingComm counting(comm);
    const UnitedTable table = unite_tables(counting, source, mine);
    EXPECT_EQ(table.rows.size(), tensors);
    EXPECT_EQ(table.rows[0].name, "tensor1000");
    received[rank] = counting.received_bytes;
  });
  constexpr std::uint64_t row_bytes = 18;  // name, kind, place
  for (const std::uint64_t bytes : received) EXPECT_LT(bytes, 3 * tensors * row_bytes);
}

TEST(AppendCatalog, AddsRowsOfOriginOneAndKeepsHomes) {
  for (const int ranks : {1, 2, 3}) {
    std::size_t chunks = 0;
    std::mutex mutex;
    run_ranks(ranks, {}, [&](Comm& comm) {
      NodeFiles disk("");
      Source source = discover(list_tree(comm, disk, {cases + "/fsdp/two_ranks_bf16/input"}), "fsdp");
      const Source more = discover(list_tree(comm, disk, {cases + "/fsdp/uneven_3_over_4/input"}), "fsdp");
      FileCache files(disk, source), more_files(disk, more);
      Catalog catalog = read_catalog(comm, files, source);
      const Catalog other = read_catalog(comm, more_files, more);
      const std::size_t before = catalog.tensors.size();
      append_catalog(comm, source, catalog, more, other);
      EXPECT_EQ(catalog.tensors.size(), before + other.tensors.size());
      EXPECT_EQ(catalog.tensors[before - 1].origin, 0);
      EXPECT_EQ(catalog.tensors[before].origin, 1);
      EXPECT_EQ(source.files.size(), 6U);
      for (const Chunk& chunk : catalog.chunks) {
        EXPECT_EQ(home_of(chunk.tensor, catalog.tensors.size(), comm.size()), comm.rank());
        EXPECT_EQ(chunk.tensor >= before, chunk.file >= 2);
      }
      prove_coverage(comm, files, source, catalog, {});
      EXPECT_TRUE(catalog.findings.empty());
      const std::lock_guard lock(mutex);
      chunks += catalog.chunks.size();
    });
    EXPECT_GT(chunks, 0U);
  }
}

TEST(FileOwners, BalanceNeighbouringFiles) {
  Source source;
  for (int i = 0; i < 10; ++i) {
    ShardFile file;
    file.nodes = i < 2 ? std::vector<std::uint32_t>{1} : std::vector<std::uint32_t>{0, 1};
    source.files.push_back(file);
  }
  InProcessOptions options;
  options.ranks_per_node = 1;
  run_ranks(2, options, [&](Comm& comm) { EXPECT_EQ(file_owners(comm, source), (std::vector<int>{1, 1, 0, 0, 0, 0, 0, 1, 1, 1})); });
  run_ranks(4, {}, [&](Comm& comm) {
    for (ShardFile& file : source.files) file.nodes = {0};
    const auto owners = file_owners(comm, source);
    EXPECT_TRUE(std::is_sorted(owners.begin(), owners.end()));
    for (int rank = 0; rank < 4; ++rank) EXPECT_GE(std::count(owners.begin(), owners.end(), rank), 2);
  });
}

TEST(HomeOf, DealsBlocksOfNeighbours) {
  std::vector<int> homes;
  for (TensorId id = 0; id < 7; ++id) homes.push_back(home_of(id, 7, 3));
  EXPECT_EQ(homes, (std::vector<int>{0, 0, 0, 1, 1, 2, 2}));
  EXPECT_EQ(home_of(0, 0, 3), 0);
}

}  // namespace
}  // namespace unshard
