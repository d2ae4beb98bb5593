#include "sockets.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>

namespace unshard {
namespace {

/// Waits until something can be done with the socket; false after the deadline.
bool wait_for_event(int socket, short events, Moment deadline) {
  while (true) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now()).count();
    if (left <= 0) return false;
    pollfd wanted{socket, events, 0};
    const int count = poll(&wanted, 1, static_cast<int>(left));
    if (count > 0) return true;
    if (count < 0 && errno != EINTR) return false;
  }
}

/// A node that loses its power closes no connection: the system asks it, now and then, whether it is there.
void keep_alive(int socket) {
  constexpr int yes = 1, idle_seconds = 30, between_seconds = 10, tries = 6;
  setsockopt(socket, SOL_SOCKET, SO_KEEPALIVE, &yes, sizeof yes);
  setsockopt(socket, IPPROTO_TCP, TCP_KEEPIDLE, &idle_seconds, sizeof idle_seconds);
  setsockopt(socket, IPPROTO_TCP, TCP_KEEPINTVL, &between_seconds, sizeof between_seconds);
  setsockopt(socket, IPPROTO_TCP, TCP_KEEPCNT, &tries, sizeof tries);
}

std::optional<std::string> text_of(const sockaddr& address) {
  const socklen_t size = address.sa_family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
  char text[NI_MAXHOST];
  if (getnameinfo(&address, size, text, sizeof text, nullptr, 0, NI_NUMERICHOST) != 0) return std::nullopt;
  return text;
}

bool is_link_local(const sockaddr& address) {
  if (address.sa_family == AF_INET6) return IN6_IS_ADDR_LINKLOCAL(&reinterpret_cast<const sockaddr_in6&>(address).sin6_addr);
  return (ntohl(reinterpret_cast<const sockaddr_in&>(address).sin_addr.s_addr) >> 16U) == 0xA9FEU;  // 169.254.0.0/16
}

/// Whether the other side sends these bytes first.
bool begins_with(int socket, std::span<const std::byte> secret, Moment deadline) {
  std::vector<std::byte> got(secret.size());
  for (std::size_t at = 0; at < got.size();) {
    if (!wait_for_event(socket, POLLIN, deadline)) return false;
    const ssize_t count = recv(socket, got.data() + at, got.size() - at, 0);
    if (count < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (count <= 0) return false;
    at += static_cast<std::size_t>(count);
  }
  return std::equal(got.begin(), got.end(), secret.begin());
}

}  // namespace

void Descriptor::close() {
  if (number_ >= 0) ::close(std::exchange(number_, -1));
}

Listener listen_anywhere() {
  Listener listener;
  for (const int family : {AF_INET6, AF_INET}) {  // one of IPv6 takes IPv4 as well
    Descriptor socket(::socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!socket.is_open()) continue;
    constexpr int no = 0;
    if (family == AF_INET6 && setsockopt(socket.number(), IPPROTO_IPV6, IPV6_V6ONLY, &no, sizeof no) != 0) continue;
    sockaddr_in6 address{};  // of any family: all zero but for the family, which is any address and any port
    address.sin6_family = static_cast<sa_family_t>(family);
    socklen_t size = family == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
    auto* generic = reinterpret_cast<sockaddr*>(&address);
    if (bind(socket.number(), generic, size) != 0 || listen(socket.number(), 16) != 0) continue;
    if (getsockname(socket.number(), generic, &size) != 0) continue;
    listener = {std::move(socket), ntohs(address.sin6_port)};  // the port lies at the same place in both
    break;
  }
  return listener;
}

std::vector<std::string> own_addresses() {
  std::vector<std::string> addresses;
  ifaddrs* first = nullptr;
  if (getifaddrs(&first) != 0) return addresses;
  for (const ifaddrs* one = first; one != nullptr; one = one->ifa_next) {
    if (one->ifa_addr == nullptr || (one->ifa_flags & IFF_UP) == 0 || (one->ifa_flags & IFF_LOOPBACK) != 0) continue;
    const int family = one->ifa_addr->sa_family;
    if ((family != AF_INET && family != AF_INET6) || is_link_local(*one->ifa_addr)) continue;
    if (const auto text = text_of(*one->ifa_addr)) addresses.push_back(*text);
  }
  freeifaddrs(first);
  return addresses;
}

Descriptor connect_to(const std::string& address, std::uint16_t port, std::span<const std::byte> secret, Moment deadline) {
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
  if (getaddrinfo(address.c_str(), std::to_string(port).c_str(), &hints, &found) != 0) return {};
  Descriptor socket(::socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  bool connected = socket.is_open() && connect(socket.number(), found->ai_addr, found->ai_addrlen) == 0;
  if (socket.is_open() && !connected && errno == EINPROGRESS && wait_for_event(socket.number(), POLLOUT, deadline)) {
    int error = 0;
    socklen_t size = sizeof error;
    connected = getsockopt(socket.number(), SOL_SOCKET, SO_ERROR, &error, &size) == 0 && error == 0;
  }
  freeaddrinfo(found);
  if (!connected) return {};
  if (send(socket.number(), secret.data(), secret.size(), MSG_NOSIGNAL) != static_cast<ssize_t>(secret.size())) return {};
  keep_alive(socket.number());
  return socket;
}

Descriptor accept_from(const Listener& listener, std::span<const std::byte> secret, Moment deadline) {
  while (wait_for_event(listener.socket.number(), POLLIN, deadline)) {
    Descriptor socket(accept4(listener.socket.number(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket.is_open() || !begins_with(socket.number(), secret, deadline)) continue;
    keep_alive(socket.number());
    return socket;
  }
  return {};
}

}  // namespace unshard
