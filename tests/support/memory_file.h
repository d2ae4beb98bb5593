// A file that lies in memory, for readers of headers.
#pragma once

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "unshard/error.h"
#include "unshard/file_system.h"

namespace unshard::testing {

class MemoryFile final : public File {
 public:
  explicit MemoryFile(std::string content) : content_(std::move(content)) {}
  [[nodiscard]] const std::string& path() const override { return path_; }
  [[nodiscard]] std::uint64_t size() const override { return content_.size(); }
  void read_at(std::uint64_t position, std::span<std::byte> to) override {
    largest_read_ = std::max(largest_read_, to.size());
    if (position > content_.size() || to.size() > content_.size() - position) throw Error(ErrorCode::bad_input, path_ + ": ends too early");
    if (!to.empty()) std::memcpy(to.data(), content_.data() + position, to.size());
  }
  void write_at(std::uint64_t, std::span<const std::byte>) override { throw Error(ErrorCode::io, path_ + ": is only for reading"); }
  bool reserve(std::uint64_t) override { return false; }
  void start_writeback(std::uint64_t, std::uint64_t) override {}
  void drop_cache(std::uint64_t, std::uint64_t) override {}
  void sync() override {}
  [[nodiscard]] std::size_t largest_read() const { return largest_read_; }

 private:
  std::string path_ = "memory";
  std::string content_;
  std::size_t largest_read_ = 0;
};

}  // namespace unshard::testing
