#include "checked.h"

#include <array>
#include <limits>
#include <thread>

#include "back_off.h"
#include "unshard/error.h"

namespace unshard {

namespace {

/// Most messages end while a rank looks a few times; a sleep costs 50 microseconds at least.
constexpr int tests_before_sleep = 100;

}  // namespace

std::string mpi_text(int code) {
  std::array<char, MPI_MAX_ERROR_STRING> text{};
  int length = 0;
  if (MPI_Error_string(code, text.data(), &length) != MPI_SUCCESS) return "MPI error " + std::to_string(code);
  return {text.data(), static_cast<std::size_t>(length)};
}

void check(int code, const char* call) {
  if (code != MPI_SUCCESS) throw Error(ErrorCode::mpi, std::string(call) + ": " + mpi_text(code));
}

int to_int(std::uint64_t size) {
  if (size > static_cast<std::uint64_t>(std::numeric_limits<int>::max())) {
    throw Error(ErrorCode::internal, std::to_string(size) + " is too large for one call of MPI");
  }
  return static_cast<int>(size);
}

void wait_for(MPI_Request& request, const char* call) {
  BackOff back_off;
  for (int tests = 0;; ++tests) {
    int done = 0;
    check(MPI_Test(&request, &done, MPI_STATUS_IGNORE), call);
    if (done != 0) return;
    if (tests < tests_before_sleep) {
      std::this_thread::yield();
    } else {
      back_off.sleep();
    }
  }
}

}  // namespace unshard
