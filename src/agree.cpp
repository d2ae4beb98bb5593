#include "unshard/agree.h"

#include <new>

#include "unshard/work_limits.h"
#include "value_bytes.h"

namespace unshard {

namespace {

/// Made when the program starts, since there is no memory for it when it is needed: copies share its text.
const Error out_of_memory(ErrorCode::internal, "out of memory; give each rank more, or try --low-cpu-mem-usage");

std::string where(const Comm& comm) {
  if (comm.size() == 1) return "";
  return " (rank " + std::to_string(comm.rank()) + " on " + comm.host_of(comm.rank()) + ")";
}

std::string and_others(std::uint64_t others) {
  if (others == 0) return "";
  return ", and " + std::to_string(others) + (others == 1 ? " more rank" : " more ranks");
}

}  // namespace

void agree(Comm& comm, std::string_view step, const std::optional<Error>& mine) {
  const auto nobody = static_cast<std::uint64_t>(comm.size());
  const std::uint64_t candidate = mine ? static_cast<std::uint64_t>(comm.rank()) : nobody;
  const std::uint64_t first = comm.reduce_all(candidate, Reduction::min);  // the only cost when all is well
  if (first == nobody) return;
  const std::uint64_t failed = comm.reduce_all(mine ? 1 : 0, Reduction::sum);
  const bool speaks = first == candidate;
  const std::uint64_t code = comm.reduce_all(speaks ? static_cast<std::uint64_t>(mine->code()) : 0, Reduction::max);
  const bool by_signal = is_stop(static_cast<ErrorCode>(code));  // sent to the job: which rank saw it first says nothing
  const auto said = [&] {
    if (mine->is_agreed()) return std::string(mine->what());  // by these ranks, or by some of them
    return std::string(step) + ": " + mine->what() + (by_signal ? "" : where(comm) + and_others(failed - 1));
  };
  throw Error(static_cast<ErrorCode>(code), text_from(comm, static_cast<int>(first), speaks ? said() : std::string{}), true);
}

Error current_error() {
  try {
    throw;
  } catch (const Error& error) {
    return error;
  } catch (const std::bad_alloc&) {
    return out_of_memory;
  } catch (const std::exception& error) {
    return {ErrorCode::internal, error.what()};
  } catch (...) {
    return {ErrorCode::internal, "an exception of an unknown type"};
  }
}

}  // namespace unshard
