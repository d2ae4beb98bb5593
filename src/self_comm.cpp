// The communicator of a plain command: one rank, no MPI. Messages to itself are matched in a mailbox.
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <list>
#include <string>
#include <utility>

#include "back_off.h"
#include "plain_shared_file.h"
#include "unshard/comm.h"
#include "unshard/error.h"
#include "unshard/file_system.h"

namespace unshard {

void Request::wait() {
  BackOff back_off;
  while (!test()) back_off.sleep();
}

void wait_all(std::span<const std::unique_ptr<Request>> requests) {
  for (const auto& request : requests) request->wait();
}

namespace {

/// One side of a message: a send has `from`, a receive has `to`.
struct Post {
  int tag = 0;
  bool sends = false;
  std::span<const std::byte> from;
  std::span<std::byte> to;
  bool done = false;
};

class Mailbox {
 public:
  void add(const std::shared_ptr<Post>& post) {
    const auto other = std::find_if(waiting_.begin(), waiting_.end(),
                                    [&](const auto& candidate) { return candidate->tag == post->tag && candidate->sends != post->sends; });
    if (other == waiting_.end()) {
      waiting_.push_back(post);
      return;
    }
    deliver(post->sends ? *post : **other, post->sends ? **other : *post);
    waiting_.erase(other);
  }

 private:
  static void deliver(Post& send, Post& receive) {
    if (send.from.size() != receive.to.size()) {
      throw Error(ErrorCode::internal, "a message of " + std::to_string(send.from.size()) + " bytes for a receive of " +
                                           std::to_string(receive.to.size()) + " bytes, tag " + std::to_string(send.tag));
    }
    if (!send.from.empty()) std::memcpy(receive.to.data(), send.from.data(), send.from.size());
    send.done = receive.done = true;
  }

  std::list<std::shared_ptr<Post>> waiting_;
};

class SelfRequest final : public Request {
 public:
  explicit SelfRequest(std::shared_ptr<Post> post) : post_(std::move(post)) {}
  bool test() override { return post_->done; }
  void wait() override {
    if (post_->done) return;
    throw Error(ErrorCode::internal, "the only rank waits for its own message, tag " + std::to_string(post_->tag));
  }

 private:
  std::shared_ptr<Post> post_;
};

std::string host_name() {
  std::array<char, 256> name{};
  if (gethostname(name.data(), name.size() - 1) != 0) return "localhost";
  return name.data();
}

class SelfComm final : public Comm {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }
  int node_of(int) const override { return 0; }
  int node_count() const override { return 1; }
  const std::string& host_of(int) const override { return host_; }

  void barrier() override {}
  std::uint64_t reduce_all(std::uint64_t value, Reduction) override { return value; }
  void broadcast(Bytes&, int) override {}
  std::vector<Bytes> gather_all(const Bytes& mine) override { return {mine}; }
  std::vector<Bytes> gather(const Bytes& mine, int) override { return {mine}; }
  std::vector<Bytes> all_to_all(std::vector<Bytes> to_each) override { return to_each; }

  std::unique_ptr<Request> send(int, int tag, std::span<const std::byte> data) override {
    return post({.tag = tag, .sends = true, .from = data, .to = {}});
  }
  std::unique_ptr<Request> receive(int, int tag, std::span<std::byte> data) override {
    return post({.tag = tag, .sends = false, .from = {}, .to = data});
  }

  std::unique_ptr<Comm> split(int) override { return self_comm(); }
  std::unique_ptr<SharedFile> open_shared(const std::string& path, const std::vector<std::pair<std::string, std::string>>&) override {
    return std::make_unique<PlainSharedFile>(files_->open_for_writing(path, false));
  }

 private:
  std::unique_ptr<Request> post(const Post& content) {
    auto post = std::make_shared<Post>(content);
    mailbox_.add(post);
    return std::make_unique<SelfRequest>(std::move(post));
  }

  std::string host_ = host_name();
  std::unique_ptr<FileSystem> files_ = posix_file_system();  // before the files that it opens
  Mailbox mailbox_;
};

}  // namespace

std::unique_ptr<Comm> self_comm() {
  return std::make_unique<SelfComm>();
}

}  // namespace unshard
