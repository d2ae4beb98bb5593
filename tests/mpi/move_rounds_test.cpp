// Moving in rounds over real MPI and MPI-IO: an exchange that is posted before a collective write must not deadlock with any of MPI's ways
// of writing together.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "support/stored_model.h"
#include "unshard/agree.h"
#include "unshard/move.h"
#include "unshard/mpi/comm.h"
#include "unshard/publish.h"

namespace unshard::test {
namespace {

/// Ten f32 tensors whose rows lie in four shards, as bf16 in one file: 4 MB and, with steps of 64 KiB, many rounds of messages that MPI
/// does not send ahead.
class MoveRounds : public testing::Test {
 protected:
  MoveRounds() {
    for (std::uint64_t t = 0; t < 10; ++t) {
      const Shape shape{400, 500 + t};
      const TensorId id = model_.add(DType::f32, shape);
      for (std::uint32_t f = 0; f < 4; ++f) model_.store(id, {{f * 100, 0}, {100, shape[1]}}, f);
      targets_.targets.push_back({"target" + std::to_string(t), DType::bf16, shape, {copy_of(id, shape)}});
    }
    std::uint64_t number = static_cast<std::uint64_t>(::getpid());
    number = comm_->reduce_all(number, Reduction::min);  // several of these tests may run at the same time
    folder_ = std::filesystem::temp_directory_path() / ("unshard_move_rounds_" + std::to_string(number));
    layout_ = lay_out_for_test(targets_, 1 << 30, 1000, 0);
    for (std::size_t f = 0; f < model_.contents.size(); ++f)
      model_.source.files[f].path = (folder_ / model_.source.files[f].label).string();
    if (comm_->rank() == 0) write_files();
    comm_->barrier();
  }
  ~MoveRounds() override {
    comm_->barrier();
    if (comm_->rank() == 0) std::filesystem::remove_all(folder_);
  }

  void write_files() const {
    std::filesystem::create_directories(folder_);
    for (std::size_t f = 0; f < model_.contents.size(); ++f)
      std::ofstream(model_.source.files[f].path, std::ios::binary) << model_.contents[f];
  }

  void write_output() const {
    std::ofstream(output(), std::ios::binary) << layout_.files[0].header;
    std::filesystem::resize_file(output(), layout_.files[0].size_bytes);
  }

  [[nodiscard]] std::string output() const { return (folder_ / partial_name(layout_.files[0])).string(); }

  /// Moves, reads back as the move goes on or after it, and compares the file with what must come out.
  void move_all(IoMode io, bool home_readers) {
    for (const bool read_back : {true, false}) move_once(io, home_readers, read_back);
  }

  void move_once(IoMode io, bool home_readers, bool read_back) {
    if (comm_->rank() == 0) write_output();
    comm_->barrier();
    const std::unique_ptr<FileSystem> disk = posix_file_system();
    const Plan plan = make_plan(targets_, layout_, {comm_->size(), 1 << 20, 64 << 10, 0, 0});
    MoveOptions options;
    options.io = io;
    options.home_readers = home_readers;
    options.buffer_bytes = 2 << 20;
    options.read_back = read_back;
    options.trail_bytes = 100 << 10;
    FileCache sources(*disk, model_.source);
    const Catalog catalog = model_.catalog_of(comm_->rank(), comm_->size());
    const ChunkTable chunks = send_chunks(*comm_, catalog, targets_, plan);
    const MoveReport report = move(*comm_, sources, model_.source, catalog, targets_, plan, chunks, *disk, folder_.string(), options);
    if (!read_back) verify(*comm_, *disk, folder_.string(), plan, report.extents, {.threads = 2});
    std::ostringstream written;
    written << std::ifstream(output(), std::ios::binary).rdbuf();
    const bool equal = written.str() == expected_files(model_, targets_, layout_)[0];
    EXPECT_EQ(comm_->reduce_all(equal ? 1 : 0, Reduction::min), 1U);
  }

  std::unique_ptr<Comm> comm_ = mpi_comm(MPI_COMM_WORLD);
  StoredModel model_{{"a.pt", "b.pt", "c.pt", "d.pt"}};
  Targets targets_;
  Layout layout_;
  std::filesystem::path folder_;
};

TEST_F(MoveRounds, OwnersReadAndWriteTogether) {
  move_all(IoMode::collective, false);
}

TEST_F(MoveRounds, HomeReadersSendAndOwnersWriteTogether) {
  move_all(IoMode::collective, true);
}

TEST_F(MoveRounds, HomeReadersSendAndOwnersWriteAlone) {
  move_all(IoMode::posix, true);
}

TEST_F(MoveRounds, EveryRankAlone) {
  move_all(IoMode::posix, false);
}

TEST_F(MoveRounds, AShardThatCantBeReadIsOneErrorOnAllRanks) {
  for (const bool home_readers : {false, true}) {
    comm_->barrier();
    if (comm_->rank() == 0) std::filesystem::resize_file(model_.source.files[2].path, 1000);
    comm_->barrier();
    try {
      move_all(IoMode::collective, home_readers);
      ADD_FAILURE() << "no error";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::bad_input);
      EXPECT_NE(std::string(error.what()).find("c.pt"), std::string::npos) << error.what();
    }
  }
}

}  // namespace
}  // namespace unshard::test
