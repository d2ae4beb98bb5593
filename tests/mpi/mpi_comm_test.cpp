// The communicator over MPI, with as many ranks as the test was started with.
#include <gtest/gtest.h>
#include <mpi.h>

#include <functional>
#include <memory>
#include <string>

#include "support/message_text.h"
#include "unshard/agree.h"
#include "unshard/error.h"
#include "unshard/mpi/comm.h"

namespace unshard {
namespace {

using testing::bytes_of;
using testing::text_of;

class MpiComm : public ::testing::Test {
 protected:
  std::unique_ptr<Comm> comm_ = mpi_comm(MPI_COMM_WORLD);
  std::uint64_t ranks_ = static_cast<std::uint64_t>(comm_->size());
  std::uint64_t rank_ = static_cast<std::uint64_t>(comm_->rank());
};

TEST_F(MpiComm, Reduces) {
  comm_->barrier();
  EXPECT_EQ(comm_->reduce_all(rank_ + 5, Reduction::min), 5U);
  EXPECT_EQ(comm_->reduce_all(rank_ + 5, Reduction::max), ranks_ + 4);
  EXPECT_EQ(comm_->reduce_all(std::uint64_t{1} << 40, Reduction::sum), ranks_ << 40);
}

TEST_F(MpiComm, BroadcastsFromAnyRank) {
  for (int root = 0; root < comm_->size(); ++root) {
    Bytes data = bytes_of(comm_->rank() == root ? "from " + std::to_string(root) : "something longer that is replaced");
    comm_->broadcast(data, root);
    EXPECT_EQ(text_of(data), "from " + std::to_string(root));
    Bytes nothing = bytes_of(comm_->rank() == root ? "" : "x");
    comm_->broadcast(nothing, root);
    EXPECT_TRUE(nothing.empty());
  }
}

TEST_F(MpiComm, GathersPartsOfDifferentSizes) {
  const std::string mine(rank_ * 3, static_cast<char>('a' + rank_));  // rank 0 sends nothing
  const auto expect_all = [&](const std::vector<Bytes>& all) {
    ASSERT_EQ(all.size(), ranks_);
    for (std::uint64_t other = 0; other < ranks_; ++other)
      EXPECT_EQ(text_of(all[other]), std::string(other * 3, static_cast<char>('a' + other)));
  };
  expect_all(comm_->gather_all(bytes_of(mine)));
  const int last = comm_->size() - 1;
  const std::vector<Bytes> at_last = comm_->gather(bytes_of(mine), last);
  if (comm_->rank() == last) {
    expect_all(at_last);
  } else {
    EXPECT_TRUE(at_last.empty());
  }
}

TEST_F(MpiComm, SendsEachRankItsPart) {
  std::vector<Bytes> to_each;
  for (std::uint64_t other = 0; other < ranks_; ++other) {
    to_each.push_back(other % 2 == 1 ? Bytes{} : bytes_of(std::to_string(rank_) + ">" + std::to_string(other)));
  }
  const std::vector<Bytes> received = comm_->all_to_all(to_each);
  ASSERT_EQ(received.size(), ranks_);
  for (std::uint64_t other = 0; other < ranks_; ++other) {
    EXPECT_EQ(text_of(received[other]), rank_ % 2 == 1 ? "" : std::to_string(other) + ">" + std::to_string(rank_));
  }
}

TEST_F(MpiComm, DeliversMessagesInOrder) {
  std::vector<std::string> sent, received(2 * ranks_, std::string(4, '?'));
  for (std::uint64_t other = 0; other < ranks_; ++other) {
    for (const char* number : {"a", "b"}) sent.push_back(std::to_string(rank_) + ">" + std::to_string(other) + number);
  }
  std::vector<std::unique_ptr<Request>> requests;
  for (std::uint64_t other = 0; other < ranks_; ++other) {
    for (std::uint64_t number = 0; number < 2; ++number) {
      requests.push_back(comm_->receive(static_cast<int>(other), 3, std::as_writable_bytes(std::span(received[2 * other + number]))));
      requests.push_back(comm_->send(static_cast<int>(other), 3, std::as_bytes(std::span(sent[2 * other + number]))));
    }
  }
  wait_all(requests);
  for (std::uint64_t other = 0; other < ranks_; ++other) {
    EXPECT_EQ(received[2 * other], std::to_string(other) + ">" + std::to_string(rank_) + "a");
    EXPECT_EQ(received[2 * other + 1], std::to_string(other) + ">" + std::to_string(rank_) + "b");
  }
  EXPECT_TRUE(requests[0]->test()) << "a message that has ended stays so";
}

TEST_F(MpiComm, DoesNotMixItsOwnMessagesWithTheCallers) {
  std::string received(1, '?');
  const std::string sent(1, 's');
  const int next = (comm_->rank() + 1) % comm_->size(), previous = (comm_->rank() + comm_->size() - 1) % comm_->size();
  std::vector<std::unique_ptr<Request>> requests;
  requests.push_back(comm_->receive(previous, 32766, std::as_writable_bytes(std::span(received))));
  const std::vector<Bytes> parts = comm_->all_to_all(std::vector<Bytes>(ranks_, bytes_of("x")));
  EXPECT_EQ(text_of(parts[static_cast<std::size_t>(previous)]), "x");
  requests.push_back(comm_->send(next, 32766, std::as_bytes(std::span(sent))));
  wait_all(requests);
  EXPECT_EQ(received, "s");
  EXPECT_THROW((void)comm_->send(next, 32767, {}), Error);
}

TEST_F(MpiComm, RefusesAMessageOfAnotherSize) {
  std::string received(8, '?');
  const std::string sent(5, 's');
  const int self = comm_->rank();
  const auto receive = comm_->receive(self, 1, std::as_writable_bytes(std::span(received)));
  const auto send = comm_->send(self, 1, std::as_bytes(std::span(sent)));
  EXPECT_THROW(receive->wait(), Error);
  send->wait();
}

TEST_F(MpiComm, SplitsByColor) {
  const auto half = comm_->split(comm_->rank() % 2);
  EXPECT_EQ(static_cast<std::uint64_t>(half->size()), (ranks_ + 1 - rank_ % 2) / 2);
  EXPECT_EQ(static_cast<std::uint64_t>(half->rank()), rank_ / 2);
  EXPECT_EQ(half->reduce_all(rank_ % 2, Reduction::min), rank_ % 2);
  EXPECT_EQ(half->node_count(), 1);
  EXPECT_EQ(half->host_of(0), comm_->host_of(comm_->rank()));
}

TEST_F(MpiComm, KnowsThatAllRanksAreHere) {
  EXPECT_EQ(comm_->node_count(), 1);
  for (int rank = 0; rank < comm_->size(); ++rank) EXPECT_EQ(comm_->node_of(rank), 0);
  EXPECT_FALSE(comm_->host_of(0).empty());
}

TEST_F(MpiComm, TakesMoreThanOneCallCanCarry) {
  if (comm_->size() != 2) GTEST_SKIP() << "for two ranks: it needs memory";
  const std::size_t size = (std::size_t{256} << 20) + 5;
  Bytes data(comm_->rank() == 0 ? size : 0);
  if (comm_->rank() == 0) data.front() = data[size - 6] = data.back() = std::byte{7};
  comm_->broadcast(data, 0);
  ASSERT_EQ(data.size(), size);
  EXPECT_TRUE(data.front() == std::byte{7} && data[size - 6] == std::byte{7} && data.back() == std::byte{7});
  std::vector<Bytes> to_each(2);
  if (comm_->rank() == 1) to_each[0] = std::move(data);
  data = {};
  const Bytes received = comm_->all_to_all(std::move(to_each))[1];
  ASSERT_EQ(received.size(), comm_->rank() == 0 ? size : 0);
  if (comm_->rank() == 0) {
    EXPECT_TRUE(received.front() == std::byte{7} && received[size - 6] == std::byte{7} && received.back() == std::byte{7});
  }
}

/// Three steps of which one fails on the ranks that `fails` names; the text of the Error, the same on every rank.
std::string run_pipeline(Comm& comm, int failing_step, const std::function<bool(int)>& fails) {
  try {
    for (const int step : {1, 2, 3}) {
      collectively(comm, "step" + std::to_string(step), [&] {
        if (step == failing_step && fails(comm.rank())) throw Error(ErrorCode::io, "file" + std::to_string(comm.rank()) + ": is gone");
      });
      comm.barrier();
    }
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::io);
    return error.what();
  }
  return "";
}

TEST_F(MpiComm, MakesOneErrorOfOneFailure) {
  const int last = comm_->size() - 1;
  const auto who = [&](int rank) {
    return comm_->size() == 1 ? std::string{} : " (rank " + std::to_string(rank) + " on " + comm_->host_of(rank) + ")";
  };
  EXPECT_EQ(run_pipeline(*comm_, 0, [](int) { return true; }), "");
  for (const int step : {1, 2, 3}) {
    const std::string name = "step" + std::to_string(step) + ": file";
    EXPECT_EQ(run_pipeline(*comm_, step, [](int rank) { return rank == 0; }), name + "0: is gone" + who(0));
    EXPECT_EQ(run_pipeline(*comm_, step, [&](int rank) { return rank == last; }), name + std::to_string(last) + ": is gone" + who(last));
    const std::string others = last == 0 ? "" : last == 1 ? ", and 1 more rank" : ", and " + std::to_string(last) + " more ranks";
    EXPECT_EQ(run_pipeline(*comm_, step, [](int) { return true; }), name + "0: is gone" + who(0) + others);
  }
}

TEST_F(MpiComm, ThrowsErrorsOfMpi) {
  try {
    (void)comm_->send(comm_->size(), 1, {});  // no such rank
    FAIL() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::mpi);
    EXPECT_EQ(std::string(error.what()).find("MPI_Isend: "), 0U) << error.what();
  }
}

}  // namespace
}  // namespace unshard
