// By SCM_RIGHTS (unix(7)): a message between two sockets of a node may hold descriptors, which are the receiver's then. The sockets have
// names that the kernel chooses in its abstract namespace, and uses again. Anybody on the node may send to such a name, so a message counts
// only with the job's token in front, and from a process of the same user:
//
//     token (16 bytes) · number of each file (FileId) · SCM_RIGHTS: a descriptor for each · SCM_CREDENTIALS, by the kernel
#include "pass_files.h"

#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "descriptor.h"
#include "file_owners.h"
#include "unshard/agree.h"
#include "unshard/error.h"

namespace unshard {
namespace {

constexpr std::string_view step = "passing open files on";
constexpr std::size_t most_files_at_once = 250;  // in one message; the kernel takes 253
constexpr timeval patience{10, 0};               // what is waited for is there already

using Token = std::array<std::uint64_t, 2>;

[[noreturn]] void refuse(const std::string& what) {
  throw Error(ErrorCode::io, what);
}

[[noreturn]] void fail(const char* what) {
  refuse(std::string(what) + ": " + std::strerror(errno));
}

/// A file that another rank has sent.
struct Passed {
  FileId file = 0;
  Descriptor descriptor;
};

struct Text {
  Token token{};
  std::array<FileId, most_files_at_once> files{};
};

class Mailbox {
 public:
  Mailbox() : socket_(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0)) {
    if (socket_.number() < 0) fail("no socket");
    sockaddr_un unnamed{};
    unnamed.sun_family = AF_UNIX;
    if (::bind(socket_.number(), reinterpret_cast<const sockaddr*>(&unnamed), sizeof unnamed.sun_family) != 0) fail("no name for a socket");
    const int yes = 1;
    if (::setsockopt(socket_.number(), SOL_SOCKET, SO_PASSCRED, &yes, sizeof yes) != 0 ||
        ::setsockopt(socket_.number(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience) != 0 ||
        ::setsockopt(socket_.number(), SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience) != 0)
      fail("setting up a socket");
  }

  /// Its name, as bytes.
  [[nodiscard]] Bytes address() const {
    sockaddr_un name{};
    socklen_t length = sizeof name;
    if (::getsockname(socket_.number(), reinterpret_cast<sockaddr*>(&name), &length) != 0) fail("no name of a socket");
    const auto bytes = std::as_bytes(std::span(&name, 1)).first(std::min<std::size_t>(length, sizeof name));
    return {bytes.begin(), bytes.end()};
  }

  /// At most most_files_at_once; `descriptors` by file.
  void send(const Bytes& address, const Token& token, std::span<const FileId> files, std::span<const int> descriptors) const {
    Text text{token};
    std::copy(files.begin(), files.end(), text.files.begin());
    iovec part{&text, sizeof text.token + files.size_bytes()};
    alignas(cmsghdr) std::array<std::byte, CMSG_SPACE(most_files_at_once * sizeof(int))> control{};
    msghdr message{};
    message.msg_name = const_cast<std::byte*>(address.data());
    message.msg_namelen = static_cast<socklen_t>(address.size());
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control.data();
    message.msg_controllen = CMSG_SPACE(descriptors.size_bytes());
    cmsghdr* const header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(descriptors.size_bytes());
    std::memcpy(CMSG_DATA(header), descriptors.data(), descriptors.size_bytes());
    ssize_t sent = 0;
    do {
      sent = ::sendmsg(socket_.number(), &message, MSG_NOSIGNAL);
    } while (sent < 0 && errno == EINTR);
    if (sent != static_cast<ssize_t>(part.iov_len)) fail("sending");
  }

  /// Adds what one message holds to `passed`.
  void receive(const Token& token, std::vector<Passed>& passed) const {
    Text text;
    iovec part{&text, sizeof text};
    alignas(cmsghdr) std::array<std::byte, CMSG_SPACE(most_files_at_once * sizeof(int)) + CMSG_SPACE(sizeof(ucred))> control{};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    ssize_t length = 0;
    do {
      length = ::recvmsg(socket_.number(), &message, MSG_CMSG_CLOEXEC);
    } while (length < 0 && errno == EINTR);
    if (length < 0) fail("receiving");
    std::vector<Descriptor> descriptors;  // closed again when the message is not what it should be
    bool is_ours = false;
    for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr; header = CMSG_NXTHDR(&message, header)) {
      if (header->cmsg_level != SOL_SOCKET) continue;
      if (header->cmsg_type == SCM_RIGHTS) take(*header, descriptors);
      if (header->cmsg_type == SCM_CREDENTIALS) is_ours = user_of(*header) == ::geteuid();
    }
    const bool is_whole = (message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) == 0 &&
                          static_cast<std::size_t>(length) == sizeof text.token + descriptors.size() * sizeof(FileId);
    if (!is_ours || !is_whole || text.token != token) refuse("a message came that no rank of this job has sent");
    for (std::size_t i = 0; i < descriptors.size(); ++i) passed.push_back({text.files.at(i), std::move(descriptors[i])});
  }

 private:
  static void take(const cmsghdr& header, std::vector<Descriptor>& to) {
    const std::size_t count = (header.cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < count; ++i) {
      int number = -1;
      std::memcpy(&number, CMSG_DATA(&header) + i * sizeof number, sizeof number);
      to.emplace_back(number);
    }
  }

  static uid_t user_of(const cmsghdr& header) {
    ucred sender{};
    std::memcpy(&sender, CMSG_DATA(&header), sizeof sender);
    return sender.uid;
  }

  Descriptor socket_;
};

/// Collective.
Token common_token(Comm& comm) {
  std::random_device random;
  Token token{};
  for (std::uint64_t& half : token) half = std::uint64_t{random()} << 32U | random();
  const auto bytes = std::as_bytes(std::span(token));
  Bytes shared(bytes.begin(), bytes.end());
  comm.broadcast(shared, 0);
  std::memcpy(token.data(), shared.data(), sizeof token);
  return token;
}

void send_files(const Mailbox& mailbox, const Bytes& address, const Token& token, FileCache& files, const std::vector<FileId>& own) {
  for (std::size_t first = 0; first < own.size(); first += most_files_at_once) {
    const auto some = std::span(own).subspan(first, std::min(most_files_at_once, own.size() - first));
    std::vector<std::shared_ptr<File>> held;
    std::vector<int> descriptors;
    for (const FileId file : some) {
      held.push_back(files.get(file));
      descriptors.push_back(held.back()->descriptor());
      if (descriptors.back() < 0) refuse(printable(held.back()->path(), 4096) + " has no descriptor");
    }
    mailbox.send(address, token, some, descriptors);
  }
}

/// Receives what one rank has sent, which must be the files given.
void receive_files(const Mailbox& mailbox, const Token& token, const std::vector<FileId>& expected, std::vector<Passed>& passed) {
  const std::size_t before = passed.size();
  while (passed.size() - before < expected.size()) mailbox.receive(token, passed);
  const bool are_those = std::equal(passed.begin() + static_cast<std::ptrdiff_t>(before), passed.end(), expected.begin(), expected.end(),
                                    [](const Passed& one, FileId file) { return one.file == file; });
  if (!are_those) refuse("other files came than were expected");
}

/// The files behind what was passed; all of them, or an Error.
std::vector<std::shared_ptr<File>> adopted(FileSystem& system, const Source& source, std::vector<Passed>& passed) {
  std::vector<std::shared_ptr<File>> opened;
  for (Passed& one : passed) {
    const ShardFile& file = source.files[one.file];
    opened.push_back(system.adopt(one.descriptor.release(), file.path));
    if (opened.back()->size() != file.size_bytes)
      refuse(printable(file.path, 4096) + " has " + std::to_string(opened.back()->size()) + " bytes, " + std::to_string(file.size_bytes) +
             " were expected");
  }
  return opened;
}

}  // namespace

void pass_files_on(Comm& comm, FileCache& files, const Source& source) {
  const int size = comm.size(), rank = comm.rank();
  std::vector<int> owners;
  std::unique_ptr<Mailbox> mailbox;
  const std::vector<Bytes> addresses = comm.gather_all(collectively(comm, step, [&] {
    owners = file_owners(comm, source);
    mailbox = std::make_unique<Mailbox>();
    return mailbox->address();
  }));
  const Token token = common_token(comm);
  std::vector<Passed> passed;
  // In round d each rank sends to the one d places after it. What is received has been sent: nobody waits. And nobody is more than a round
  // ahead, so that queues, which are short, do not fill.
  for (int distance = 1; distance < size; ++distance) {
    const auto after = static_cast<std::size_t>((rank + distance) % size);
    const int before = (rank - distance + size) % size;
    collectively(comm, step, [&] { send_files(*mailbox, addresses[after], token, files, files_of(owners, rank)); });
    collectively(comm, step, [&] { receive_files(*mailbox, token, files_of(owners, before), passed); });
  }
  const auto opened = collectively(comm, step, [&] { return adopted(files.system(), source, passed); });
  for (std::size_t i = 0; i < passed.size(); ++i) files.put(passed[i].file, opened[i]);
}

}  // namespace unshard
