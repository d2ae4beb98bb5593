// A failure on any rank becomes one Error on every rank.
#include "unshard/agree.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <new>
#include <string>

#include "unshard/in_process_comm.h"

namespace {
thread_local bool has_memory = true;
}

// Not inlined: GCC would take free() for the wrong partner of a `new` that it sees.
[[gnu::noinline]] void* operator new(std::size_t size) {
  void* const memory = has_memory ? std::malloc(size) : nullptr;
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
[[gnu::noinline]] void* operator new(std::size_t size, const std::nothrow_t&) noexcept {
  return has_memory ? std::malloc(size) : nullptr;
}
[[gnu::noinline]] void operator delete(void* memory) noexcept {
  std::free(memory);
}
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept {
  std::free(memory);
}

namespace unshard {
namespace {

/// Three steps of which `step` fails on the ranks that `fails` names; what each rank ends with.
std::string run_pipeline(int ranks, int failing_step, const std::function<bool(int rank)>& fails, ErrorCode* code = nullptr) {
  try {
    run_ranks(ranks, {.seed = static_cast<std::uint64_t>(failing_step)}, [&](Comm& comm) {
      const auto work = [&](int step) {
        return collectively(comm, "step" + std::to_string(step), [&] {
          if (step == failing_step && fails(comm.rank()))
            throw Error(ErrorCode::bad_input, "file" + std::to_string(comm.rank()) + ": is bad");
          return step;
        });
      };
      for (const int step : {1, 2, 3}) {
        if (work(step) != step) throw Error(ErrorCode::internal, "a step returned another's value");
        comm.barrier();
      }
    });
  } catch (const Error& error) {
    if (code != nullptr) *code = error.code();
    return error.what();
  }
  return "";
}

TEST(Agree, ReturnsWhenNoRankHasFailed) {
  for (const int ranks : {1, 2, 3, 4}) EXPECT_EQ(run_pipeline(ranks, 0, [](int) { return true; }), "");
}

TEST(Agree, GivesEveryRankTheFailureOfOneRank) {
  for (const int step : {1, 2, 3}) {
    for (const int ranks : {2, 3, 4}) {
      ErrorCode code{};
      const std::string name = "step" + std::to_string(step);
      EXPECT_EQ(run_pipeline(
                    ranks, step, [](int rank) { return rank == 0; }, &code),
                name + ": file0: is bad (rank 0 on node0)");
      EXPECT_EQ(code, ErrorCode::bad_input);
      const std::string last = std::to_string(ranks - 1);
      EXPECT_EQ(run_pipeline(
                    ranks, step, [&](int rank) { return rank == ranks - 1; }, &code),
                name + ": file" + last + ": is bad (rank " + last + " on node0)");
      EXPECT_EQ(code, ErrorCode::bad_input);
    }
  }
}

TEST(Agree, NamesTheLowestRankAndCountsTheOthers) {
  EXPECT_EQ(run_pipeline(2, 2, [](int) { return true; }), "step2: file0: is bad (rank 0 on node0), and 1 more rank");
  EXPECT_EQ(run_pipeline(4, 2, [](int rank) { return rank > 0; }), "step2: file1: is bad (rank 1 on node0), and 2 more ranks");
}

TEST(Agree, NamesNoRankWhenThereIsOnlyOne) {
  EXPECT_EQ(run_pipeline(1, 1, [](int) { return true; }), "step1: file0: is bad");
}

TEST(Agree, WorksOnThePlainCommandsCommunicator) {
  const auto comm = self_comm();
  EXPECT_EQ(collectively(*comm, "count", [] { return 42; }), 42);
  try {
    collectively(*comm, "count", [] { throw Error(ErrorCode::no_space, "disk: is full"); });
    FAIL() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "count: disk: is full");
    EXPECT_EQ(error.code(), ErrorCode::no_space);
  }
}

/// A step may have agreed already, among the ranks that share a file.
TEST(Agree, SaysOnceWhichRankItWas) {
  std::string once, twice;
  for (const bool again : {false, true}) {
    try {
      run_ranks(3, {}, [&](Comm& comm) {
        const auto failed = attempt([&] { collectively(comm, "open", [] { throw Error(ErrorCode::io, "a: is gone"); }); });
        if (!again) throw Error(*failed);
        agree(comm, "move", failed);
      });
    } catch (const Error& error) {
      (again ? twice : once) = error.what();
    }
  }
  EXPECT_EQ(twice, once);
  EXPECT_EQ(once.find("open: a: is gone (rank 0 on "), 0U) << once;
}

TEST(Attempt, NeedsNoMemoryToSayThatThereIsNone) {
  has_memory = false;
  const auto error = attempt([] { throw std::bad_alloc(); });
  has_memory = true;
  EXPECT_NE(std::string(error->what()).find("out of memory"), std::string::npos);
}

TEST(Attempt, TurnsEveryExceptionIntoAnError) {
  EXPECT_FALSE(attempt([] {}));
  EXPECT_EQ(attempt([] { throw Error(ErrorCode::usage, "x"); })->code(), ErrorCode::usage);
  EXPECT_EQ(attempt([] { throw std::bad_alloc(); })->code(), ErrorCode::internal);
  EXPECT_NE(std::string(attempt([] { throw std::bad_alloc(); })->what()).find("out of memory"), std::string::npos);
  EXPECT_STREQ(attempt([] { throw std::runtime_error("odd"); })->what(), "odd");
  EXPECT_EQ(attempt([] { throw 7; })->code(), ErrorCode::internal);
}

}  // namespace
}  // namespace unshard
