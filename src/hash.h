// Internal: a 64-bit hash (FNV-1a) of numbers and texts, for comparing values between ranks and runs. Not against anyone who wants a collision.
#pragma once

#include <cstdint>
#include <string_view>
#include <type_traits>

namespace unshard {

class Hash {
 public:
  void add(std::string_view bytes) {
    add(std::uint64_t{bytes.size()});
    for (const char byte : bytes) mix(static_cast<unsigned char>(byte));
  }
  template <class Number>
  requires std::is_integral_v<Number>
  void add(Number number) {
    for (int shift = 0; shift < 64; shift += 8) mix(static_cast<std::uint64_t>(number) >> shift & 0xff);
  }
  template <class... Numbers>
  void add_all(Numbers... numbers) {
    (add(numbers), ...);
  }
  template <class Numbers>
  void add_list(const Numbers& numbers) {
    add(std::uint64_t{numbers.size()});
    for (const auto number : numbers) add(number);
  }
  [[nodiscard]] std::uint64_t value() const { return value_; }

 private:
  void mix(std::uint64_t byte) { value_ = (value_ ^ byte) * 0x100000001b3; }
  std::uint64_t value_ = 0xcbf29ce484222325;
};

}  // namespace unshard
