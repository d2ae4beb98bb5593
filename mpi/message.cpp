#include "message.h"

#include <string>

#include "back_off.h"
#include "checked.h"
#include "unshard/error.h"

namespace unshard {

Message::~Message() {
  if (done_ || request_ == MPI_REQUEST_NULL) return;
  int finalized = 0;
  MPI_Finalized(&finalized);
  if (finalized != 0) return;
  if (expected_bytes_) MPI_Cancel(&request_);
  MPI_Request_free(&request_);
}

bool Message::test() {
  if (done_) return true;
  int ended = 0;
  MPI_Status status;
  check(MPI_Test(&request_, &ended, &status), "MPI_Test");
  if (ended == 0) return false;
  done_ = true;
  if (!expected_bytes_) return true;
  int count = 0;
  check(MPI_Get_count(&status, MPI_BYTE, &count), "MPI_Get_count");
  if (static_cast<std::uint64_t>(count) != *expected_bytes_) {
    throw Error(ErrorCode::internal,
                "a message of " + std::to_string(count) + " bytes for a receive of " + std::to_string(*expected_bytes_) + " bytes");
  }
  return true;
}

void Message::wait() {
  BackOff back_off;
  for (int tests = 0; !test(); ++tests) {
    if (tests > 100) back_off.sleep();
  }
}

}  // namespace unshard
