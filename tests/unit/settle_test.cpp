// What follows the writing: pieces are read back, handed to the device and dropped, some time after they were written.
#include "settle.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "crc32c.h"
#include "unshard/error.h"

namespace unshard::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

/// A file of letters that notes what is asked of it.
class NotedFile final : public File {
 public:
  explicit NotedFile(std::string content) : content_(std::move(content)) {}
  [[nodiscard]] const std::string& path() const override { return path_; }
  [[nodiscard]] std::uint64_t size() const override { return content_.size(); }
  void read_at(std::uint64_t position, std::span<std::byte> to) override {
    if (position + to.size() > content_.size()) throw Error(ErrorCode::bad_input, path_ + ": truncated");
    std::memcpy(to.data(), content_.data() + position, to.size());
    note("read", position, to.size());
  }
  void write_at(std::uint64_t, std::span<const std::byte>) override {}
  bool reserve(std::uint64_t) override { return false; }
  void start_writeback(std::uint64_t, std::uint64_t) override {}
  void drop_cache(std::uint64_t position, std::uint64_t length) override { note("drop", position, length); }
  void sync() override {}

  [[nodiscard]] Extent piece(std::uint64_t begin, std::uint64_t end) const {
    return {0, begin, end, crc32c(std::as_bytes(std::span(content_)).subspan(begin, end - begin))};
  }
  std::string content_;
  std::vector<std::string> calls;

 private:
  void note(const std::string& what, std::uint64_t position, std::uint64_t length) {
    calls.push_back(what + " " + std::to_string(position) + " " + std::to_string(length));
  }
  std::string path_ = "/out/f";
};

class Settle : public testing::Test {
 protected:
  std::shared_ptr<NotedFile> file = std::make_shared<NotedFile>("abcdefghijklmnopqrstuvwxyz");
  std::vector<std::byte> buffer = std::vector<std::byte>(64);
};

TEST_F(Settle, TouchesNothingUntilEnoughWasWrittenBehindIt) {
  Settler settler(true, 20);
  settler.add(file, file->piece(0, 10), buffer);
  settler.add(file, file->piece(10, 20), buffer);
  EXPECT_THAT(file->calls, IsEmpty());
  settler.add(file, file->piece(20, 26), buffer);
  EXPECT_THAT(file->calls, ElementsAre("read 0 10", "read 10 10", "read 20 6", "drop 0 26"));
}

TEST_F(Settle, FinishesWhatIsLeftOnce) {
  Settler settler(true);
  settler.add(file, file->piece(13, 26), buffer);  // threads don't end in order
  settler.add(file, file->piece(0, 13), buffer);
  settler.finish(buffer);
  settler.finish(buffer);
  EXPECT_THAT(file->calls, ElementsAre("read 13 13", "read 0 13", "drop 0 26"));
}

TEST_F(Settle, OnlyDropsWhereAnotherRankReadsBack) {
  Settler settler(false);
  settler.add(file, file->piece(0, 26), buffer);
  settler.finish(buffer);
  EXPECT_THAT(file->calls, ElementsAre("drop 0 26"));
}

TEST_F(Settle, DropsOfEachFileWhatWasWrittenToIt) {
  const auto other = std::make_shared<NotedFile>("0123456789");
  Settler settler(false);
  settler.add(file, file->piece(16, 26), buffer);
  settler.add(other, other->piece(0, 5), buffer);
  settler.add(other, other->piece(5, 10), buffer);
  settler.finish(buffer);
  EXPECT_THAT(file->calls, ElementsAre("drop 16 10"));
  EXPECT_THAT(other->calls, ElementsAre("drop 0 10"));
}

TEST_F(Settle, ReadsWithWhateverBufferThereIs) {
  Settler settler(true);
  settler.add(file, file->piece(0, 26), buffer);
  settler.finish(std::span(buffer).first(10));
  EXPECT_THAT(file->calls, ElementsAre("read 0 10", "read 10 10", "read 20 6", "drop 0 26"));
}

TEST_F(Settle, NamesThePieceThatIsNotWhatWasWritten) {
  Settler settler(true);
  settler.add(file, file->piece(0, 13), buffer);
  settler.add(file, file->piece(13, 26), buffer);
  file->content_[20] = '?';
  try {
    settler.finish(buffer);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::verification);
    EXPECT_THAT(error.what(), HasSubstr("/out/f: bytes 13 to 26 are not what was written"));
  }
}

TEST_F(Settle, AFileThatEndsEarlyIsNotWhatWasWritten) {
  Settler settler(true);
  settler.add(file, file->piece(0, 26), buffer);
  file->content_.resize(25);
  try {
    settler.finish(buffer);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::verification);
  }
}

TEST_F(Settle, ForgetsAfterAFailureAndClosesTheFiles) {
  Settler settler(true, 20);
  settler.add(file, file->piece(0, 10), buffer);
  settler.forget();
  EXPECT_EQ(file.use_count(), 1);
  settler.finish(buffer);
  EXPECT_THAT(file->calls, IsEmpty());
  settler.add(file, file->piece(10, 26), buffer);
  EXPECT_THAT(file->calls, IsEmpty()) << "what was forgotten does not count any more";
}

}  // namespace
}  // namespace unshard::test
