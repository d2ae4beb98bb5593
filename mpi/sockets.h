// The few socket calls that lifeline.cpp needs, each checked. All are Local.
#pragma once

#include <chrono>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace unshard {

/// Owns a file descriptor; -1: none.
class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int number) : number_(number) {}
  ~Descriptor() { close(); }
  Descriptor(Descriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    if (this != &other) {
      close();
      number_ = std::exchange(other.number_, -1);
    }
    return *this;
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;

  void close();
  [[nodiscard]] int number() const { return number_; }
  [[nodiscard]] bool is_open() const { return number_ >= 0; }

 private:
  int number_ = -1;
};

using Moment = std::chrono::steady_clock::time_point;

/// A socket that accepts connections from anywhere, on a port that the system chooses.
struct Listener {
  Descriptor socket;
  std::uint16_t port = 0;
};
[[nodiscard]] Listener listen_anywhere();  ///< none open when it is not allowed

/// The addresses of this host that other hosts may reach, as text: those of interfaces that are up, without loopback and link-local ones.
[[nodiscard]] std::vector<std::string> own_addresses();

/// Connects, and sends `secret`; none open when that has not worked by `deadline`.
[[nodiscard]] Descriptor connect_to(const std::string& address, std::uint16_t port, std::span<const std::byte> secret, Moment deadline);

/// The first connection whose first bytes are `secret`; others are dropped. None open after `deadline`.
[[nodiscard]] Descriptor accept_from(const Listener& listener, std::span<const std::byte> secret, Moment deadline);

}  // namespace unshard
