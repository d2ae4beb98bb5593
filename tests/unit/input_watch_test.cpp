// Files that change between the listing, the reading and the end of a run.
#include "input_watch.h"

#include <gtest/gtest.h>

#include <functional>

#include "support/memory_file_system.h"
#include "unshard/error.h"
#include "unshard/in_process_comm.h"

namespace unshard::test {
namespace {

class Watched : public ::testing::Test {
 protected:
  Watched() {
    for (const char* name : {"a.pt", "b.pt", "c.pt", "index.json"}) disk_.put(std::string("/in/") + name, "ten bytes.");
  }

  /// Lists, lets `before` change something, watches three files and an index, and looks for what `after` has changed.
  /// "" when nothing was found.
  std::string error_with(int ranks, const std::function<void()>& before, const std::function<void()>& after = {}) {
    try {
      InProcessOptions options;
      options.files = &disk_;
      run_ranks(ranks, options, [&](Comm& comm) {
        const Tree tree = list_tree(comm, disk_, {"/in"});
        Source source;
        source.files = {shard("a.pt"), shard("b.pt")};
        source.index_files = {shard("index.json")};
        change(comm, before);
        InputWatch watch(comm, disk_, tree, source);
        source.files.push_back(shard("c.pt"));
        watch.extend();
        identity_ = watch.identity();
        change(comm, after);
        watch.require_unchanged();
      });
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::bad_input) << error.what();
      return error.what();
    }
    return "";
  }

  MemoryFileSystem disk_;
  std::string identity_;

 private:
  static ShardFile shard(const std::string& name) {
    ShardFile file;
    file.path = "/in/" + name;
    file.label = name;
    file.size_bytes = 10;
    file.nodes = {0};
    return file;
  }
  static void change(Comm& comm, const std::function<void()>& how) {
    comm.barrier();
    if (comm.rank() == 0 && how) how();
    comm.barrier();
  }
};

TEST_F(Watched, NothingIsSaidOfFilesThatStayTheSameAndTheirIdentityDependsOnNoNumberOfRanks) {
  EXPECT_EQ(error_with(1, {}), "");
  const std::string alone = identity_;
  EXPECT_EQ(alone.size(), 64U);
  for (int ranks = 2; ranks <= 4; ++ranks) {
    EXPECT_EQ(error_with(ranks, {}), "");
    EXPECT_EQ(identity_, alone);
  }
}

TEST_F(Watched, AChangeBetweenListingAndReadingIsNamed) {
  for (const char* name : {"a.pt", "b.pt", "c.pt", "index.json"}) {
    for (int ranks = 1; ranks <= 4; ++ranks) {
      const std::string path = std::string("/in/") + name;
      EXPECT_NE(error_with(ranks, [&] { disk_.put(path, "more than ten bytes"); }).find(std::string(name) + ": changed while"),
                std::string::npos);
      disk_.put(path, "ten bytes.");
      EXPECT_NE(error_with(ranks, [&] { disk_.put(path, "TEN BYTES."); }).find(std::string(name) + ": changed while"), std::string::npos);
    }
  }
}

TEST_F(Watched, AChangeDuringTheRunIsNamed) {
  for (const char* name : {"a.pt", "c.pt", "index.json"}) {
    for (int ranks = 1; ranks <= 4; ++ranks) {
      const std::string path = std::string("/in/") + name;
      EXPECT_NE(error_with(ranks, {}, [&] { disk_.put(path, "TEN BYTES."); }).find(std::string(name) + ": changed while"),
                std::string::npos);
      EXPECT_NE(error_with(ranks, {}, [&] { disk_.remove_file(path); }).find("not there any more"), std::string::npos);
      disk_.put(path, "ten bytes.");
    }
  }
}

}  // namespace
}  // namespace unshard::test
