// The stream of torch.save before 1.6, written by hand.
#include <gtest/gtest.h>

#include "support/torch_values.h"

namespace unshard {
namespace {

using namespace unshard::testing;

std::string legacy_stream(const std::string& object, const std::string& keys, const std::string& storages) {
  return std::string("\x80\x02\x8A\x0A\x6C\xFC\x9C\x46\xF9\x20\x6A\xA8\x50\x19\x2E", 15) + make::whole(make::number(1001)) +
         make::whole("}") + make::whole(object) + make::whole(keys) + storages;
}
std::string legacy_storage(const std::string& key, std::int64_t elements, const std::string& view) {
  return make::tuple({make::text("storage"), make::global("torch", "FloatStorage"), make::text(key), make::text("cpu"),
                      make::number(elements), view}) +
         "Q";
}

TEST(LegacyStream, ViewsOfStoragesAreSubRanges) {
  const std::string view = make::tuple({make::text("v"), make::number(1), make::number(2)});
  MemoryFile file(legacy_stream(make::dict({{"w", make::tensor(legacy_storage("k", 4, view), 0, {2}, {1})}}), make::list({make::text("k")}),
                                little(4, 8) + four_floats));
  const TorchContents contents = read_torch_file(file, "file.pt");
  ASSERT_EQ(contents.entries.size(), 1U);
  EXPECT_EQ(stored_bytes(file, contents.entries[0].tensor), raw({2.F, 3.F}));
}

TEST(LegacyStream, DefectsAreNamed) {
  const auto tensor = [](const std::string& view = make::none, std::int64_t count = 4) {
    return make::dict({{"w", make::tensor(legacy_storage("k", 4, view), 0, {count}, {1})}});
  };
  const std::string key = make::list({make::text("k")});
  expect_refused("count too large", legacy_stream(tensor(), key, little(5, 8) + four_floats), "is truncated: storage 'k' of 5 elements");
  expect_refused("count that wraps", legacy_stream(tensor(), key, little((1ULL << 62) + 4, 8) + four_floats), "is truncated: storage 'k'");
  expect_refused("other count", legacy_stream(tensor(), key, little(3, 8) + four_floats), "should have 4 elements");
  expect_refused("no storage", legacy_stream(tensor(), key, ""), "is truncated: storage 'k' should begin");
  expect_refused("unknown key", legacy_stream(tensor(), make::list({make::text("other")}), little(4, 8) + four_floats),
                 "belongs to no tensor");
  expect_refused(
      "key twice",
      legacy_stream(tensor(), make::list({make::text("k"), make::text("k")}), little(4, 8) + four_floats + little(4, 8) + four_floats),
      "is listed twice");
  expect_refused("key not listed", legacy_stream(tensor(), "]", ""), "is not in the file");
  expect_refused(
      "view beyond",
      legacy_stream(tensor(make::tuple({make::text("v"), make::number(3), make::number(2)}), 2), key, little(4, 8) + four_floats),
      "goes beyond its 4 elements");
  expect_refused("cut pickle", legacy_stream(tensor(), key, "").substr(0, 60), "is truncated");
}

}  // namespace
}  // namespace unshard
