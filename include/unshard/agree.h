// A failure on any rank becomes one Error on every rank.
//
// Rules (measured with Open MPI 4.1: a rank that throws while others enter a collective hangs the job): between two collective calls
// there is exactly one collectively(...) or agree(...); what one rank does alone is a collectively(...) step too.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include "unshard/comm.h"
#include "unshard/error.h"

namespace unshard {

/// Collective. Returns on every rank if no rank has failed; otherwise throws the same Error on every rank: code and text of the lowest
/// failing rank, `<step>: <text>`, with ` (rank 3 on n017)` when there are several ranks and `, and 2 more ranks` when more failed.
void agree(Comm& comm, std::string_view step, const std::optional<Error>& mine);

/// Local. Runs `work`; any exception becomes the Error it stands for (std::bad_alloc, std::exception: internal).
template <class Work>
std::optional<Error> attempt(Work&& work);

/// Collective. Runs `work` (which makes no collective call) on this rank, then agrees; returns work's value.
template <class Work>
auto collectively(Comm& comm, std::string_view step, Work&& work) {
  using Result = std::invoke_result_t<Work>;
  if constexpr (std::is_void_v<Result>) {
    agree(comm, step, attempt(std::forward<Work>(work)));
  } else {
    std::optional<Result> result;
    agree(comm, step, attempt([&] { result.emplace(work()); }));
    return std::move(*result);
  }
}

/// The exception being handled, as an Error. Local; only inside a catch block.
[[nodiscard]] Error current_error();

template <class Work>
std::optional<Error> attempt(Work&& work) {
  try {
    work();
    return std::nullopt;
  } catch (...) {
    return current_error();
  }
}

}  // namespace unshard
