// MPI's way of failing and of counting, turned into ours: codes into Error(mpi), 64-bit sizes into int.
#pragma once

#include <mpi.h>

#include <cstdint>
#include <string>

namespace unshard {

/// Local. Throws Error(mpi) with MPI's text unless `code` is MPI_SUCCESS; `call` names the function.
void check(int code, const char* call);

/// Local. MPI's text for `code`.
[[nodiscard]] std::string mpi_text(int code);

/// Local. The one place where a size becomes MPI's int. Throws Error(internal) when it does not fit.
[[nodiscard]] int to_int(std::uint64_t size);

/// Local. Waits for `request` by testing: a rank that spins inside MPI takes the core of one that reads.
void wait_for(MPI_Request& request, const char* call);

}  // namespace unshard
