// What a call refuses.
#pragma once

#include <functional>
#include <string>

#include "unshard/error.h"

namespace unshard::test {

/// The message of the Error(unsupported) that `call` throws; "another error", or "no error" where it throws none.
inline std::string refusal_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.code() == ErrorCode::unsupported ? error.what() : "another error";
  }
  return "no error";
}

}  // namespace unshard::test
