#include "lifeline.h"

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <string>
#include <thread>
#include <vector>

#include "sockets.h"
#include "unshard/agree.h"
#include "wire.h"

namespace unshard {

namespace {

using namespace std::chrono_literals;

constexpr auto time_to_connect = 1500ms;
/// A dead rank has two neighbours. The one before it speaks; the one after it waits so long for the news to come round the ring.
constexpr auto time_for_news = 1000ms;
/// A job that is being aborted loses its ranks one by one: nobody should speak of that.
constexpr auto time_for_an_abort = 300ms;

constexpr char farewell = 'F';  ///< this rank leaves in order
constexpr char news = 'X';      ///< somebody has died, and the user has been told

/// Where a rank can be reached.
struct Door {
  std::uint16_t port = 0;
  Bytes secret;
  std::vector<std::string> addresses;
};

Bytes encode(const Door& door) {
  WireWriter out;
  out.number(door.port);
  out.bytes(door.secret);
  for (const std::string& address : door.addresses) out.text(address);
  return out.take();
}

Door decode(const Bytes& bytes) {
  Door door;
  WireReader in(bytes);
  door.port = static_cast<std::uint16_t>(in.number_up_to(65535));
  const std::string secret = in.text();
  const auto view = std::as_bytes(std::span(secret));
  door.secret.assign(view.begin(), view.end());
  while (!in.at_end()) door.addresses.push_back(in.text());
  return door;
}

Descriptor connect_to_door(Door door, bool same_host, Moment deadline) {
  if (same_host) door.addresses.insert(door.addresses.begin(), "127.0.0.1");
  for (const std::string& address : door.addresses) {
    const Moment now = std::chrono::steady_clock::now();
    const auto share = (deadline - now) / 2;  // one that does not answer leaves time for the next
    if (Descriptor socket = connect_to(address, door.port, door.secret, now + share); socket.is_open()) return socket;
  }
  return {};
}

}  // namespace

class Lifeline::Ring {
 public:
  Ring(Comm& comm, OnLoss on_loss) : on_loss_(std::move(on_loss)), wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    neighbours_[0].rank = (comm.rank() + comm.size() - 1) % comm.size();
    neighbours_[1].rank = (comm.rank() + 1) % comm.size();
    connect(comm);
    if (watched() > 0 && wake_.is_open()) start();
  }

  ~Ring() {
    leaving_ = true;
    stop();
    for (const Neighbour& neighbour : neighbours_) tell(neighbour, farewell);
  }
  Ring(const Ring&) = delete;
  Ring& operator=(const Ring&) = delete;

  [[nodiscard]] int watched() const {
    int count = 0;
    for (const Neighbour& neighbour : neighbours_) count += neighbour.socket.is_open() ? 1 : 0;
    return count;
  }

  void die() {
    if (std::this_thread::get_id() != thread_.get_id()) stop();
    for (Neighbour& neighbour : neighbours_) neighbour.socket.close();
  }

 private:
  struct Neighbour {
    int rank = 0;
    Descriptor socket;
  };
  enum class Event : std::uint8_t { none, left, died, news };

  /// Collective.
  void connect(Comm& comm) {
    const Moment deadline = std::chrono::steady_clock::now() + time_to_connect;
    const Listener listener = listen_anywhere();
    Door mine{listener.port, Bytes(16), own_addresses()};
    if (!listener.socket.is_open() || getrandom(mine.secret.data(), mine.secret.size(), 0) != static_cast<ssize_t>(mine.secret.size()))
      mine = {};
    const std::vector<Bytes> doors = comm.gather_all(encode(mine));
    (void)attempt([&] {  // who can't be reached is not watched
      const Door next = decode(doors[static_cast<std::size_t>(neighbours_[1].rank)]);
      const bool same_host = comm.node_of(comm.rank()) == comm.node_of(neighbours_[1].rank);
      if (next.port != 0) neighbours_[1].socket = connect_to_door(next, same_host, deadline);
      if (mine.port != 0) neighbours_[0].socket = accept_from(listener, mine.secret, deadline);
    });
    // One side alone may think that there is a connection.
    const Bytes here{std::byte{neighbours_[0].socket.is_open()}, std::byte{neighbours_[1].socket.is_open()}};
    const std::vector<Bytes> all = comm.gather_all(here);
    if (all[static_cast<std::size_t>(neighbours_[0].rank)][1] == std::byte{0}) neighbours_[0].socket.close();
    if (all[static_cast<std::size_t>(neighbours_[1].rank)][0] == std::byte{0}) neighbours_[1].socket.close();
  }

  void start() {
    sigset_t every, before;
    sigfillset(&every);
    pthread_sigmask(SIG_SETMASK, &every, &before);  // signals are for the main thread
    thread_ = std::thread([this] { watch(); });
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }

  void stop() {
    if (!thread_.joinable()) return;
    const std::uint64_t one = 1;
    if (write(wake_.number(), &one, sizeof one) == static_cast<ssize_t>(sizeof one))
      thread_.join();
    else
      thread_.detach();
  }

  void watch() {
    std::array<bool, 2> there = {neighbours_[0].socket.is_open(), neighbours_[1].socket.is_open()};
    while (there[0] || there[1]) {
      std::array<pollfd, 3> wanted = {pollfd{wake_.number(), POLLIN, 0}, pollfd{there[0] ? neighbours_[0].socket.number() : -1, POLLIN, 0},
                                      pollfd{there[1] ? neighbours_[1].socket.number() : -1, POLLIN, 0}};
      if (poll(wanted.data(), wanted.size(), -1) < 0) continue;
      if (wanted[0].revents != 0) return;
      for (std::size_t side = 0; side < 2; ++side) {
        if (wanted[side + 1].revents == 0) continue;
        const Event event = next_event(neighbours_[side]);
        if (event == Event::left) there[side] = false;
        if (event == Event::died || event == Event::news) return lose(side, event, there[1 - side]);
      }
    }
  }

  static Event next_event(const Neighbour& neighbour) {
    char word = 0;
    const ssize_t count = recv(neighbour.socket.number(), &word, 1, MSG_DONTWAIT);
    if (count < 0 && (errno == EINTR || errno == EAGAIN)) return Event::none;
    if (count <= 0) return Event::died;
    return word == farewell ? Event::left : Event::news;
  }

  static void tell(const Neighbour& neighbour, char word) {
    if (neighbour.socket.is_open()) (void)send(neighbour.socket.number(), &word, 1, MSG_NOSIGNAL | MSG_DONTWAIT);
  }

  /// The neighbour at `side` has died, or has news of a death. `other`: there is another neighbour.
  void lose(std::size_t side, Event event, bool other) {
    bool speaks = event == Event::died;
    if (speaks && is_woken_within(time_for_an_abort)) return;
    if (speaks && side == 0 && other && neighbours_[0].rank != neighbours_[1].rank) speaks = !news_within(neighbours_[1], time_for_news);
    if (leaving_) return;
    for (const Neighbour& neighbour : neighbours_) tell(neighbour, news);
    on_loss_(neighbours_[side].rank, speaks);
  }

  [[nodiscard]] bool is_woken_within(std::chrono::milliseconds time) const {
    pollfd wanted{wake_.number(), POLLIN, 0};
    return poll(&wanted, 1, static_cast<int>(time.count())) > 0;
  }

  static bool news_within(const Neighbour& neighbour, std::chrono::milliseconds time) {
    pollfd wanted{neighbour.socket.number(), POLLIN, 0};
    return poll(&wanted, 1, static_cast<int>(time.count())) > 0 && next_event(neighbour) != Event::none;
  }

  OnLoss on_loss_;
  Descriptor wake_;
  std::array<Neighbour, 2> neighbours_;  ///< the one before, the one after
  std::atomic<bool> leaving_ = false;
  std::thread thread_;
};

Lifeline::Lifeline(Comm& comm, OnLoss on_loss) : ring_(std::make_unique<Ring>(comm, std::move(on_loss))) {}
Lifeline::~Lifeline() = default;
int Lifeline::watched() const {
  return ring_->watched();
}
void Lifeline::die() {
  ring_->die();
}

}  // namespace unshard
