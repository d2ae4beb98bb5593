// Values as bytes for Comm, and back. A number takes 1 to 10 bytes (seven bits a byte, lowest first, the high bit says that more follow),
// so that half a million chunk records stay small. Reading checks every length: a damaged message is an Error, never a read beyond its end.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "unshard/comm.h"
#include "unshard/error.h"
#include "unshard/tensor.h"

namespace unshard {

class WireWriter {
 public:
  void number(std::uint64_t value) {
    if (value < 128) return bytes_.push_back(static_cast<std::byte>(value));
    std::byte encoded[10];
    std::size_t length = 0;
    for (; value >= 128; value >>= 7U) encoded[length++] = static_cast<std::byte>(value | 128U);
    encoded[length++] = static_cast<std::byte>(value);
    bytes_.insert(bytes_.end(), encoded, encoded + length);
  }
  /// Without its length.
  void raw(std::span<const std::byte> bytes) { bytes_.insert(bytes_.end(), bytes.begin(), bytes.end()); }
  void bytes(std::span<const std::byte> bytes) {
    number(bytes.size());
    raw(bytes);
  }
  void text(std::string_view text) { bytes(std::as_bytes(std::span(text.data(), text.size()))); }
  void shape(const Shape& shape) {
    number(shape.size());
    values(shape);
  }
  /// The values only, for lists whose length the reader knows.
  void values(const Shape& shape) {
    for (const std::uint64_t value : shape) number(value);
  }

  [[nodiscard]] const Bytes& written() const { return bytes_; }
  [[nodiscard]] Bytes take() { return std::exchange(bytes_, {}); }

 private:
  Bytes bytes_;
};

/// The bytes given must outlive the reader and what it returns.
class WireReader {
 public:
  explicit WireReader(std::span<const std::byte> bytes) : rest_(bytes) {}

  [[nodiscard]] bool at_end() const { return rest_.empty(); }
  [[nodiscard]] std::uint64_t number() {
    std::uint64_t value = 0;
    for (unsigned shift = 0; shift < 64; shift += 7) {
      if (rest_.empty()) break;
      const auto next = static_cast<std::uint64_t>(rest_.front());
      rest_ = rest_.subspan(1);
      value |= (next & 127U) << shift;
      if (next < 128) return value;
    }
    throw damaged();
  }
  [[nodiscard]] std::span<const std::byte> raw(std::uint64_t length) {
    if (length > rest_.size()) throw damaged();
    const auto taken = rest_.first(static_cast<std::size_t>(length));
    rest_ = rest_.subspan(static_cast<std::size_t>(length));
    return taken;
  }
  [[nodiscard]] std::span<const std::byte> bytes() { return raw(number()); }
  [[nodiscard]] std::string text() {
    const auto taken = bytes();
    return {reinterpret_cast<const char*>(taken.data()), taken.size()};
  }
  [[nodiscard]] Shape shape() { return values(number()); }
  [[nodiscard]] Shape values(std::uint64_t count) {
    if (count > max_rank) throw damaged();
    Shape shape;
    for (std::uint64_t i = 0; i < count; ++i) shape.push_back(number());
    return shape;
  }
  /// A number that is at most `most`.
  [[nodiscard]] std::uint64_t number_up_to(std::uint64_t most) {
    const std::uint64_t value = number();
    if (value > most) throw damaged();
    return value;
  }
  /// A count of things that take at least one byte each, so that it can be trusted with an allocation.
  [[nodiscard]] std::size_t count() { return static_cast<std::size_t>(number_up_to(rest_.size())); }

 private:
  static Error damaged() { return {ErrorCode::internal, "a message between ranks is damaged"}; }
  std::span<const std::byte> rest_;
};

}  // namespace unshard
