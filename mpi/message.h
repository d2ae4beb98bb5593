// A message of MPI under way.
#pragma once

#include <mpi.h>

#include <cstdint>
#include <optional>

#include "unshard/comm.h"

namespace unshard {

class Message final : public Request {
 public:
  /// `expected_bytes`: of a receive, whose sender must send as many.
  Message(MPI_Request request, std::optional<std::uint64_t> expected_bytes) : request_(request), expected_bytes_(expected_bytes) {}
  /// A message that has not ended is given up: the caller breaks its promise, but waiting here could be for ever.
  ~Message() override;
  bool test() override;
  void wait() override;

 private:
  MPI_Request request_;
  std::optional<std::uint64_t> expected_bytes_;
  bool done_ = false;
};

}  // namespace unshard
