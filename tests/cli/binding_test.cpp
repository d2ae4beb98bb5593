// What is said when the launcher has bound a rank to few CPUs. Independent source: mpirun's manual (with up to two processes, each is
// bound to a core).
#include "binding.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <thread>

namespace unshard {
namespace {

TEST(Binding, IsToldWhereCpusAreLeftToNobody) {
  const auto note = note_of_binding({.own = 1, .of_launcher = 64}, 2, 4);
  ASSERT_TRUE(note);
  EXPECT_NE(note->find("1 of its 64 CPUs, for 4 I/O threads"), std::string::npos) << *note;
  EXPECT_TRUE(note_of_binding({.own = 2, .of_launcher = 64}, 31, 4));
}

TEST(Binding, IsNotToldWhereThereIsNothingToGain) {
  EXPECT_FALSE(note_of_binding({.own = 1, .of_launcher = 2}, 2, 4)) << "the ranks have all CPUs";
  EXPECT_FALSE(note_of_binding({.own = 4, .of_launcher = 64}, 2, 4)) << "a CPU for each thread";
  EXPECT_FALSE(note_of_binding({.own = 2, .of_launcher = 2}, 1, 4)) << "not bound";
  EXPECT_FALSE(note_of_binding({.own = 1, .of_launcher = 64}, 2, 1));
}

TEST(Binding, OfThisProcessIsWhatTheSystemSays) {
  const auto before = usable_cpus();
  ASSERT_TRUE(before);
  std::thread([&] {  // a thread has CPUs of its own
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(static_cast<std::size_t>(sched_getcpu()), &one);
    ASSERT_EQ(sched_setaffinity(0, sizeof one, &one), 0);
    const auto now = usable_cpus();
    ASSERT_TRUE(now);
    EXPECT_EQ(now->own, 1);
    EXPECT_EQ(now->of_launcher, before->of_launcher);
  })
      .join();
}

}  // namespace
}  // namespace unshard
