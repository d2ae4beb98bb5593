// The common options that bound every command: memory (--buffer-size, --low-cpu-mem-usage) and signals.
#include <gtest/gtest.h>
#include <malloc.h>

#include <atomic>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <new>
#include <nlohmann/json.hpp>

#include "stored_elements.h"
#include "support/command_run.h"
#include "support/safetensors_text.h"

namespace {

std::atomic<std::size_t> allocated_bytes{0}, most_allocated_bytes{0};

void* allocate(std::size_t size) {
  void* const memory = std::malloc(size);
  if (memory == nullptr) throw std::bad_alloc();
  const std::size_t now = allocated_bytes += malloc_usable_size(memory);
  std::size_t most = most_allocated_bytes;
  while (most < now && !most_allocated_bytes.compare_exchange_weak(most, now)) {
  }
  return memory;
}

void release(void* memory) {
  if (memory != nullptr) allocated_bytes -= malloc_usable_size(memory);
  std::free(memory);
}

}  // namespace

// All memory of this program that is not LibTorch's own is counted.
void* operator new(std::size_t size) {
  return allocate(size);
}
void* operator new[](std::size_t size) {
  return allocate(size);
}
void* operator new(std::size_t size, const std::nothrow_t&) noexcept try {
  return allocate(size);
} catch (const std::bad_alloc&) {
  return nullptr;
}
void* operator new[](std::size_t size, const std::nothrow_t&) noexcept try {
  return allocate(size);
} catch (const std::bad_alloc&) {
  return nullptr;
}
void operator delete(void* memory) noexcept {
  release(memory);
}
void operator delete[](void* memory) noexcept {
  release(memory);
}
void operator delete(void* memory, std::size_t) noexcept {
  release(memory);
}
void operator delete[](void* memory, std::size_t) noexcept {
  release(memory);
}

namespace unshard {
namespace {

using nlohmann::json;
using testing::bytes_of;
using testing::safetensors;
using testing::TemporaryFolder;
using testing::write_file;

constexpr std::uint64_t mebibyte = std::uint64_t{1} << 20;
constexpr std::uint64_t metadata_bytes = mebibyte / 2;  ///< of a few tensors, lines and messages

/// The most that `work` has allocated at once.
std::uint64_t peak_of(const std::function<void()>& work) {
  const std::size_t before = allocated_bytes;
  most_allocated_bytes = before;
  work();
  return most_allocated_bytes - before;
}

/// Two folders with one tensor of 12 MB that differ in two elements.
class WorkLimitsTest : public ::testing::Test {
 protected:
  WorkLimitsTest() {
    std::vector<float> values(3'000'000);
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i % 1009) / 7.0F;
    write("0/a", values);
    values[17] += 3;
    values[2'999'999] -= 5;
    write("1/b", values);
  }

  void write(const std::string& name, const std::vector<float>& values) {
    const std::string data(reinterpret_cast<const char*>(values.data()), values.size() * 4);
    write_file(folder_ / (name + "/model.safetensors"),
               safetensors(R"({"w":{"dtype":"F32","shape":[3000,1000],"data_offsets":[0,12000000]}})", data));
  }

  [[nodiscard]] TestOptions comparison(std::uint64_t buffer_bytes) const {
    TestOptions options;
    options.merged_dir = folder_ / "0/a";
    options.test_hf_dir = folder_ / "1/b";
    options.input.buffer_bytes = buffer_bytes;
    return options;
  }

  TemporaryFolder folder_;
};

json result_of_test(int ranks, const TestOptions& options, const std::vector<std::string>& disks = {}) {
  json result;
  (void)testing::run_command(
      ranks,
      [&](const Session& session) {
        const TestResult got = test(session, options);
        if (session.comm.rank() == 0) result = json::parse(got.json);
      },
      disks);
  return result;
}

/// The code with which each rank ends, when rank `at` gets a signal after it was asked `after` times.
std::vector<int> codes_when_signalled(int ranks, int at, int after, const std::function<void(const Session&)>& command) {
  std::vector<int> codes(static_cast<std::size_t>(ranks), 0);
  (void)testing::run_command(ranks, [&](const Session& session) {
    std::atomic<int> asked = 0;
    const bool gets_it = session.comm.rank() == at;
    const auto signal = [&] { return gets_it && asked++ >= after ? SIGTERM : 0; };
    try {
      command({session.comm, session.files, session.log, signal});
    } catch (const Error& error) {
      codes[static_cast<std::size_t>(session.comm.rank())] = static_cast<int>(error.code());
      EXPECT_NE(std::string(error.what()).find("stopped by SIGTERM"), std::string::npos) << error.what();
    }
  });
  return codes;
}

TEST_F(WorkLimitsTest, TestStaysBelowThemWithTheSameResult) {
  const json usual = result_of_test(1, comparison(256 * mebibyte));
  EXPECT_EQ(usual["values_differ"][0]["different"], 2);
  for (const std::uint64_t bytes : {2 * mebibyte, 3 * mebibyte, 8 * mebibyte}) {
    json result;
    const std::uint64_t peak = peak_of([&] { result = result_of_test(1, comparison(bytes)); });
    EXPECT_EQ(result, usual) << bytes;
    EXPECT_LE(peak + Arithmetic::working_bytes, bytes + metadata_bytes) << bytes;
  }
}

TEST_F(WorkLimitsTest, TestStaysBelowThemWhereRanksReadForOthers) {
  TestOptions options = comparison(2 * mebibyte);
  options.merged_dir = "/a";
  options.test_hf_dir = "/b";
  const std::vector<std::string> disks = {folder_ / "0", folder_ / "1", folder_ / "2"};
  std::filesystem::create_directories(disks[2]);
  const json usual = result_of_test(1, comparison(256 * mebibyte));
  json result;
  const std::uint64_t peak = peak_of([&] { result = result_of_test(3, options, disks); });
  EXPECT_EQ(result["values_differ"], usual["values_differ"]);
  EXPECT_LE(peak + 3 * Arithmetic::working_bytes, 3 * (2 * mebibyte + metadata_bytes));
}

TEST_F(WorkLimitsTest, DeepCheckStaysBelowThem) {
  CheckOptions options;
  options.input.local_dirs = {folder_ / "0/a"};
  options.input.buffer_bytes = mebibyte / 2;
  options.deep = true;
  const std::uint64_t peak =
      peak_of([&] { (void)testing::run_command(1, [&](const Session& session) { EXPECT_TRUE(check(session, options).complete); }); });
  EXPECT_LE(peak, mebibyte / 2 + metadata_bytes);
}

TEST_F(WorkLimitsTest, ScatteredElementsAreReadBelowThem) {
  constexpr std::uint64_t rows = 1000, columns = 3000;
  Chunk chunk;  // the transpose of the stored tensor
  chunk.box = {{0, 0}, {columns, rows}};
  chunk.strides = {1, columns};
  const auto file = posix_file_system()->open_for_reading(folder_ / "0/a/model.safetensors");
  chunk.position = file->size() - 12'000'000;
  std::uint64_t index = 0, wrong = 0;
  const std::uint64_t peak = peak_of([&] {
    read_elements(*file, chunk, DType::f32, {.buffer_bytes = mebibyte / 2}, [&](std::span<std::byte> bytes) {
      for (std::size_t i = 0; i < bytes.size(); i += 4, ++index) {
        float value = 0;
        std::memcpy(&value, bytes.data() + i, 4);
        if (value != static_cast<float>((index / rows + index % rows * columns) % 1009) / 7.0F) ++wrong;
      }
    });
  });
  EXPECT_EQ(index, rows * columns);
  EXPECT_EQ(wrong, 0U);
  EXPECT_LE(peak, mebibyte / 4 + 4096);
}

TEST_F(WorkLimitsTest, TooLittleIsRefusedWithTheLeastThatIsNeeded) {
  const auto refusal = [](const std::function<void(const Session&)>& command) { return testing::failure_of(2, command); };
  const std::string of_test = refusal([&](const Session& session) { (void)test(session, comparison(2 * mebibyte - 1)); });
  EXPECT_EQ(of_test, "usage: test: --buffer-size 2097151: is too small; at least 2097152 bytes are needed");
  CheckOptions options;
  options.input.local_dirs = {folder_ / "0/a"};
  options.input.buffer_bytes = 1000;
  (void)testing::run_command(1, [&](const Session& session) { EXPECT_TRUE(check(session, options).complete) << "headers need none"; });
  options.deep = true;
  const std::string of_check = refusal([&](const Session& session) { (void)check(session, options); });
  EXPECT_EQ(of_check, "usage: check: --buffer-size 1000: is too small; at least 524288 bytes are needed");
}

TEST_F(WorkLimitsTest, ASignalOfOneRankStopsTestAndDeepCheckOnAll) {
  CheckOptions deep;
  deep.input.local_dirs = {folder_ / "0/a"};
  deep.deep = true;
  for (int ranks = 1; ranks <= 3; ++ranks) {
    const std::vector<int> all(static_cast<std::size_t>(ranks), 128 + SIGTERM);
    for (const int at : {0, ranks - 1}) {
      for (const int after : {0, 2}) {  // while headers are read, and while values are
        EXPECT_EQ(codes_when_signalled(ranks, at, after, [&](const Session& s) { (void)test(s, comparison(3 * mebibyte)); }), all) << at;
        EXPECT_EQ(codes_when_signalled(ranks, at, after / 2, [&](const Session& s) { (void)check(s, deep); }), all) << at;
      }
    }
    EXPECT_EQ(codes_when_signalled(ranks, 0, 1 << 20, [&](const Session& s) { (void)check(s, deep); }), std::vector<int>(all.size(), 0));
  }
}

TEST_F(WorkLimitsTest, ASignalStopsTheComparisonOfReplicas) {
  CheckOptions deep;
  deep.input.local_dirs = {UNSHARD_CASES "/fsdp/hybrid_2x2/input"};
  deep.deep = true;
  for (int ranks = 1; ranks <= 3; ++ranks) {
    const std::vector<int> all(static_cast<std::size_t>(ranks), 128 + SIGTERM);
    EXPECT_EQ(codes_when_signalled(ranks, 0, 5, [&](const Session& s) { (void)check(s, deep); }), all) << "not a file that can't be read";
  }
}

TEST_F(WorkLimitsTest, ASignalStopsAMergeWhereverItComesBeforeTheModelAppears) {
  MergeOptions options;
  options.input.local_dirs = {UNSHARD_CASES "/fsdp/two_ranks_bf16/input"};
  options.target_dir = folder_ / "model";
  const std::vector<int> all(2, 128 + SIGTERM);
  int after = 0;
  for (; after < 500; ++after) {
    const std::vector<int> codes = codes_when_signalled(2, 1, after, [&](const Session& session) { (void)merge(session, options); });
    if (codes == std::vector<int>(2, 0)) break;
    ASSERT_EQ(codes, all) << after;
    ASSERT_FALSE(std::filesystem::exists(options.target_dir)) << after;
  }
  EXPECT_GT(after, 3);
  EXPECT_TRUE(std::filesystem::exists(options.target_dir + "/model.safetensors"));
}

}  // namespace
}  // namespace unshard
