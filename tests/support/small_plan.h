// A small plan, and what an operation on its folders must refuse.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "unshard/error.h"
#include "unshard/plan.h"

namespace unshard::testing {

/// Two output files of one rank, for tests of the folders in which they grow.
inline Plan small_plan() {
  Plan plan;
  plan.layout.files = {{"model-00001-of-00002.safetensors", "header 1", 100}, {"model-00002-of-00002.safetensors", "header 22", 60}};
  plan.runs = {{{0, 0, 8, 100}, {1, 0, 9, 60}}};
  return plan;
}

/// `work` must throw an Error of this code, whose text has all of `says`.
inline void expect_error(ErrorCode code, const std::vector<std::string>& says, const std::function<void()>& work) {
  try {
    work();
    ADD_FAILURE() << "no error; expected one that says " << says[0];
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    for (const std::string& part : says)
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << part << " in " << error.what();
  }
}

}  // namespace unshard::testing
