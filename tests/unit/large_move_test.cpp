// Moves that are large in one way: a tensor of more than 4 GiB, rows longer than all buffers, very many small tensors.
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <numeric>

#include "support/memory_file_system.h"
#include "support/stored_model.h"
#include "unshard/error.h"
#include "unshard/in_process_comm.h"
#include "unshard/move.h"
#include "unshard/publish.h"

namespace unshard::test {
namespace {

constexpr std::uint64_t mib = std::uint64_t{1} << 20;

/// A file without a disk: byte i of its content after `header_bytes` is a byte of the number i / 8. What is written must be just that.
class NumbersFile final : public File {
 public:
  NumbersFile(std::string path, std::uint64_t header_bytes, std::uint64_t size_bytes, std::atomic<std::uint64_t>& written_bytes)
      : path_(std::move(path)), header_bytes_(header_bytes), size_bytes_(size_bytes), written_bytes_(written_bytes) {}
  [[nodiscard]] const std::string& path() const override { return path_; }
  [[nodiscard]] std::uint64_t size() const override { return size_bytes_; }
  void read_at(std::uint64_t position, std::span<std::byte> to) override { make(position, to); }
  void write_at(std::uint64_t position, std::span<const std::byte> from) override {
    thread_local std::vector<std::byte> expected;
    expected.resize(from.size());
    make(position, expected);
    if (std::memcmp(expected.data(), from.data(), from.size()) != 0)
      throw Error(ErrorCode::internal, path_ + ": wrong bytes at " + std::to_string(position));
    written_bytes_ += from.size();
  }
  bool reserve(std::uint64_t) override { return true; }
  void start_writeback(std::uint64_t, std::uint64_t) override {}
  void drop_cache(std::uint64_t, std::uint64_t) override {}
  void sync() override {}

 private:
  /// Whole numbers at once: a byte at a time would take a minute for 4 GiB.
  void make(std::uint64_t position, std::span<std::byte> to) const {
    if (position < header_bytes_ || position + to.size() > size_bytes_) throw Error(ErrorCode::internal, path_ + ": a range outside");
    const std::uint64_t first = position - header_bytes_, skip = first % 8;
    thread_local std::vector<std::uint64_t> numbers;
    numbers.resize((skip + to.size() + 7) / 8);
    std::iota(numbers.begin(), numbers.end(), first / 8);
    std::memcpy(to.data(), reinterpret_cast<const std::byte*>(numbers.data()) + skip, to.size());
  }

  std::string path_;
  std::uint64_t header_bytes_, size_bytes_;
  std::atomic<std::uint64_t>& written_bytes_;
};

/// One shard `/in/...` and one output file, both with the same content behind headers of different sizes.
class NumbersDisk final : public FileSystem {
 public:
  static constexpr std::uint64_t source_header = 4096, output_header = 1000;
  explicit NumbersDisk(std::uint64_t bytes) : bytes_(bytes) {}

  std::unique_ptr<File> open_for_reading(const std::string& path) override { return open(path); }
  std::unique_ptr<File> open_for_writing(const std::string& path, bool) override { return open(path); }
  std::optional<FileStatus> status(const std::string&) override { return std::nullopt; }
  std::vector<FolderEntry> list(const std::string&) override { return {}; }
  void make_folder(const std::string&) override {}
  void remove_file(const std::string&) override {}
  void remove_folder(const std::string&) override {}
  void rename(const std::string&, const std::string&) override {}
  void sync_folder(const std::string&) override {}
  std::uint64_t free_bytes(const std::string&) override { return bytes_; }
  std::string canonical(const std::string& path) override { return path; }
  [[nodiscard]] const IoCounters& counters() const override { return counters_; }

  std::atomic<std::uint64_t> written_bytes{0};

 private:
  std::unique_ptr<File> open(const std::string& path) {
    const std::uint64_t header = path.starts_with("/in/") ? source_header : output_header;
    return std::make_unique<NumbersFile>(path, header, header + bytes_, written_bytes);
  }
  std::uint64_t bytes_;
  IoCounters counters_;
};

TEST(LargeMove, ATensorOfMoreThan4GiB) {
  constexpr std::uint64_t bytes = (std::uint64_t{4} << 30) + 300 * mib + 12345;
  NumbersDisk disk(bytes);
  StoredModel model({"a.pt"});
  model.tensors.push_back({"x", DType::u8, {bytes}});
  Chunk chunk;
  chunk.box = {{0}, {bytes}};
  chunk.position = chunk.record_position = NumbersDisk::source_header;
  chunk.strides = {1};
  chunk.record_bytes = bytes;
  model.chunks = {chunk};
  Targets targets;
  targets.targets.push_back({"x", DType::u8, {bytes}, {copy_of(0, {bytes})}});
  const Layout layout = lay_out_for_test(targets, std::uint64_t{1} << 40, NumbersDisk::output_header, 0);
  ASSERT_EQ(layout.files[0].size_bytes, NumbersDisk::output_header + bytes);
  const Plan plan = make_plan(targets, layout, {.ranks = 2});
  run_ranks(2, {}, [&](Comm& comm) {
    FileCache sources(disk, model.source);
    const Catalog catalog = model.catalog_of(comm.rank(), 2);
    MoveOptions options;
    options.threads = 1;
    const ChunkTable chunks = send_chunks(comm, catalog, targets, plan);
    const MoveReport report = move(comm, sources, model.source, catalog, targets, plan, chunks, disk, "/out", options);
    if (comm.rank() == 1) {
      EXPECT_EQ(report.extents.back().end, NumbersDisk::output_header + bytes);
    }
  });
  EXPECT_EQ(disk.written_bytes, bytes);
}

struct Way {
  IoMode io;
  bool home_readers;
};
const std::vector<Way> ways = {{IoMode::posix, false}, {IoMode::posix, true}, {IoMode::collective, false}, {IoMode::collective, true}};

/// Moves `targets` made of `model` in every way with three ranks, reads back, and compares the files.
void expect_moved(const StoredModel& model, const Targets& targets, std::uint64_t buffer_bytes) {
  for (const Way& way : ways) {
    MemoryFileSystem disk;
    const Layout layout = lay_out_for_test(targets, std::uint64_t{1} << 30, 100, 0);
    for (std::size_t f = 0; f < model.contents.size(); ++f) disk.put(model.source.files[f].path, model.contents[f]);
    const OutputFile& file = layout.files[0];
    const std::string output = "/out/" + partial_name(file);
    disk.put(output, file.header + std::string(file.size_bytes - file.header.size(), '\0'));
    MoveOptions options;
    options.io = way.io;
    options.home_readers = way.home_readers;
    options.threads = 2;
    options.buffer_bytes = buffer_bytes;
    const Plan plan = make_plan(targets, layout, {.ranks = 3, .step_bytes = step_bytes_for(buffer_bytes, way.io, 1)});
    InProcessOptions in_process;
    in_process.files = &disk;
    run_ranks(3, in_process, [&](Comm& comm) {
      FileCache sources(disk, model.source);
      const Catalog catalog = model.catalog_of(comm.rank(), 3);
      const ChunkTable chunks = send_chunks(comm, catalog, targets, plan);
      const MoveReport report = move(comm, sources, model.source, catalog, targets, plan, chunks, disk, "/out", options);
      verify(comm, disk, "/out", plan, report.extents, {.threads = 2});
    });
    EXPECT_TRUE(disk.content(output) == expected_files(model, targets, layout)[0])
        << (way.io == IoMode::posix ? "posix" : "collective") << (way.home_readers ? ", home readers" : "");
  }
}

TEST(LargeMove, RowsLongerThanAllBuffers) {
  constexpr std::uint64_t columns = 300'001;  // a row of bf16 takes 600 KB, all buffers of a rank together 512 KiB
  const Shape shape{8, columns};
  StoredModel model({"a.pt", "b.pt"});
  const TensorId id = model.add(DType::f32, shape);
  model.store(id, {{0, 0}, {8, 100'000}}, 0);
  model.store(id, {{0, 100'000}, {8, columns - 100'000}}, 1);
  Targets targets;
  targets.targets.push_back({"x", DType::bf16, shape, {copy_of(id, shape)}});
  expect_moved(model, targets, 512 << 10);
}

TEST(LargeMove, TenThousandTensorsOfAFewBytes) {
  StoredModel model({"a.pt", "b.pt", "c.pt"});
  Targets targets;
  for (std::uint64_t t = 0; t < 10'000; ++t) {
    const Shape shape{1 + t % 3};
    const TensorId id = model.add(DType::f32, shape);
    model.store(id, {{0}, shape}, static_cast<std::uint32_t>(t % 3));
    targets.targets.push_back({"target" + std::to_string(t), DType::f32, shape, {copy_of(id, shape)}});
  }
  expect_moved(model, targets, 1 << 20);
}

}  // namespace
}  // namespace unshard::test
