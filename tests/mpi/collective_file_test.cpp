// A file that the ranks write together. MPI_File_write_at_all is redefined here, through MPI's profiling interface, to fail or to lie on
// one rank.
#include <gtest/gtest.h>
#include <mpi.h>

#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>
#include <string>

#include "unshard/agree.h"
#include "unshard/error.h"
#include "unshard/mpi/comm.h"

namespace {

enum class Fault { none, code, no_space, short_count };
Fault fault = Fault::none;  // of this rank; the redefined function can't be given it
int calls = 0;

}  // namespace

extern "C" int MPI_File_write_at_all(MPI_File file, MPI_Offset offset, const void* data, int count, MPI_Datatype type, MPI_Status* status) {
  ++calls;
  const bool shortened = fault == Fault::short_count;
  const int code = PMPI_File_write_at_all(file, offset, data, shortened ? count / 2 : count, type, status);
  if (fault == Fault::code) return MPI_ERR_IO;
  if (fault == Fault::no_space) return MPI_ERR_NO_SPACE;
  return code;
}

namespace unshard {
namespace {

class CollectiveFile : public testing::Test {
 protected:
  CollectiveFile() {
    fault = Fault::none;
    if (comm_->rank() == 0) std::ofstream(path_) << std::string(4 * comm_->size(), '.');
    comm_->barrier();
  }
  ~CollectiveFile() override {
    comm_->barrier();
    if (comm_->rank() == 0) std::filesystem::remove(path_);
  }

  std::string content() {
    comm_->barrier();
    std::ostringstream text;
    text << std::ifstream(path_).rdbuf();
    return text.str();
  }
  std::string expected() const {
    std::string text;
    for (int rank = 0; rank < comm_->size(); ++rank) text += std::string(4, static_cast<char>('a' + rank));
    return text;
  }
  /// Each rank writes its part; what this rank's write threw.
  std::optional<Error> write_own_part(SharedFile& file) {
    const std::string mine(4, static_cast<char>('a' + comm_->rank()));
    return attempt([&] { file.write_at_all(4 * static_cast<std::uint64_t>(comm_->rank()), std::as_bytes(std::span(mine))); });
  }

  std::unique_ptr<Comm> comm_ = mpi_comm(MPI_COMM_WORLD);
  std::string path_ = (std::filesystem::temp_directory_path() / ("unshard_collective_" + std::to_string(comm_->size()))).string();
};

TEST_F(CollectiveFile, HoldsWhatAllRanksWrote) {
  const auto file = comm_->open_shared(path_, {{"cb_nodes", "1"}, {"no_such_hint", "x"}});
  EXPECT_FALSE(write_own_part(*file));
  file->write_at_all(0, {});
  file->close();
  EXPECT_EQ(content(), expected());
}

TEST_F(CollectiveFile, TakesRanksThatHaveNothingToWrite) {
  const auto file = comm_->open_shared(path_, {});
  const std::string all = expected();
  const bool writes = comm_->rank() == comm_->size() - 1;
  file->write_at_all(0, writes ? std::as_bytes(std::span(all)) : std::span<const std::byte>{});
  file->close();
  EXPECT_EQ(content(), all);
}

TEST_F(CollectiveFile, FailsOnTheRankWhoseWriteFailedAndTheLoopGoesOn) {
  for (const int failing : {0, comm_->size() - 1}) {
    for (const Fault kind : {Fault::code, Fault::no_space, Fault::short_count}) {
      const auto file = comm_->open_shared(path_, {});
      calls = 0;
      fault = comm_->rank() == failing ? kind : Fault::none;
      const std::optional<Error> failure = write_own_part(*file);
      fault = Fault::none;
      EXPECT_EQ(failure.has_value(), comm_->rank() == failing);
      file->write_at_all(0, {});  // the next planned round
      file->close();
      EXPECT_EQ(calls, 2);
      try {
        agree(*comm_, "move", failure);
        ADD_FAILURE() << "nothing was thrown";
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), kind == Fault::no_space ? ErrorCode::no_space : ErrorCode::io);
        EXPECT_NE(std::string(error.what()).find(path_ + ": 4 bytes at " + std::to_string(4 * failing) + " could not be written"),
                  std::string::npos)
            << error.what();
      }
    }
  }
}

TEST_F(CollectiveFile, IsOpenedByAllRanksOrNone) {
  const int last = comm_->size() - 1;
  const std::string path = comm_->rank() == last ? path_ + ".absent" : path_;
  try {
    (void)comm_->open_shared(path, {});
    FAIL() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::io);
    EXPECT_EQ(std::string(error.what()).find("open: " + path_ + ".absent: can't be opened for writing: No such file"), 0U) << error.what();
  }
}

TEST_F(CollectiveFile, RefusesMoreThanOneCallMayCarry) {
  const auto file = comm_->open_shared(path_, {});
  const std::byte one{};
  const std::span<const std::byte> too_much(&one, (std::size_t{256} << 20) + 1);  // never read
  const std::optional<Error> failure = attempt([&] { file->write_at_all(0, too_much); });
  ASSERT_TRUE(failure);
  EXPECT_EQ(failure->code(), ErrorCode::internal);
  file->close();
}

TEST_F(CollectiveFile, MayBeLeftOpenAfterAFailure) {
  const auto file = comm_->open_shared(path_, {});
  EXPECT_FALSE(write_own_part(*file));
}

}  // namespace
}  // namespace unshard
