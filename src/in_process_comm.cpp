#include "unshard/in_process_comm.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <set>
#include <string>
#include <thread>
#include <utility>

#include "in_process_world.h"
#include "plain_shared_file.h"
#include "unshard/agree.h"
#include "unshard/error.h"
#include "value_bytes.h"

namespace unshard {

namespace {

class InProcessRequest final : public Request {
 public:
  InProcessRequest(std::shared_ptr<World> world, int rank, std::shared_ptr<InProcessPost> post)
      : world_(std::move(world)), rank_(rank), post_(std::move(post)) {}
  ~InProcessRequest() override { world_->drop(rank_, *post_); }
  bool test() override { return world_->test(rank_, *post_); }
  void wait() override { world_->wait(rank_, *post_); }

 private:
  std::shared_ptr<World> world_;  // may outlive the run
  int rank_;
  std::shared_ptr<InProcessPost> post_;
};

/// A file of which a rank writes what `share` returns, perhaps after the others have returned.
class InProcessSharedFile final : public SharedFile {
 public:
  using Share = std::function<std::vector<Bytes>(const std::string& call, const Bytes& brought)>;
  InProcessSharedFile(std::unique_ptr<File> file, Share share) : file_(std::move(file)), share_(std::move(share)) {}

  void write_at_all(std::uint64_t position, std::span<const std::byte> from) override {
    const std::optional<Error> failure = attempt([&] { check_call_size(from.size(), "a collective write"); });
    Bytes brought = bytes_of(std::vector{position});
    if (!failure) brought.insert(brought.end(), from.begin(), from.end());
    for (const Bytes& part : share_("write_at_all on " + file_->path(), brought)) {
      std::uint64_t at = 0;
      std::memcpy(&at, part.data(), sizeof at);
      if (part.size() > sizeof at) file_->write_at(at, std::span(part).subspan(sizeof at));
    }
    if (failure) throw Error(*failure);
  }
  void close() override {
    const std::string path = file_->path();
    file_.reset();
    (void)share_("close of " + path, {});
  }

 private:
  std::unique_ptr<File> file_;
  Share share_;
};

class InProcessComm final : public Comm {
 public:
  InProcessComm(const std::shared_ptr<World>& world, RankGroup& group, int world_rank, FileSystem& files)
      : world_(world), group_(group), world_rank_(world_rank), files_(files) {
    const int per_node = world->options().ranks_per_node;
    std::vector<int> known;
    for (const int member : group.members) {
      const int node = per_node > 0 ? member / per_node : 0;
      const auto position = std::find(known.begin(), known.end(), node) - known.begin();
      if (position == static_cast<std::ptrdiff_t>(known.size())) known.push_back(node);
      nodes_.push_back(static_cast<int>(position));
      hosts_.push_back("node" + std::to_string(node));
    }
    node_count_ = static_cast<int>(known.size());
    rank_ = static_cast<int>(std::find(group.members.begin(), group.members.end(), world_rank) - group.members.begin());
  }

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(group_.members.size()); }
  int node_of(int rank) const override { return nodes_.at(rank); }
  int node_count() const override { return node_count_; }
  const std::string& host_of(int rank) const override { return hosts_.at(rank); }

  void barrier() override { (void)meet("barrier", {}); }
  std::uint64_t reduce_all(std::uint64_t value, Reduction how) override;
  void broadcast(Bytes& data, int root) override {
    const auto met = meet("broadcast from rank " + std::to_string(root), rank_ == root ? std::vector<Bytes>{data} : std::vector<Bytes>{});
    if (rank_ != root) data = met->brought.at(root).at(0);
  }
  std::vector<Bytes> gather_all(const Bytes& mine) override { return firsts(*meet("gather_all", {mine})); }
  std::vector<Bytes> gather(const Bytes& mine, int root) override {
    const auto met = meet("gather to rank " + std::to_string(root), {mine});
    return rank_ == root ? firsts(*met) : std::vector<Bytes>{};
  }
  std::vector<Bytes> all_to_all(std::vector<Bytes> to_each) override;

  std::unique_ptr<Request> send(int to, int tag, std::span<const std::byte> data) override {
    check_call_size(data.size(), "a message");
    return post({.group = &group_,
                 .from = world_rank_,
                 .to = group_.members.at(to),
                 .tag = tag,
                 .sends = true,
                 .source = data.data(),
                 .destination = nullptr,
                 .size = data.size()});
  }
  std::unique_ptr<Request> receive(int from, int tag, std::span<std::byte> data) override {
    check_call_size(data.size(), "a message");
    return post({.group = &group_,
                 .from = group_.members.at(from),
                 .to = world_rank_,
                 .tag = tag,
                 .sends = false,
                 .source = nullptr,
                 .destination = data.data(),
                 .size = data.size()});
  }

  std::unique_ptr<Comm> split(int color) override {
    return std::make_unique<InProcessComm>(world_, world_->split(group_, world_rank_, color), world_rank_, files_);
  }
  std::unique_ptr<SharedFile> open_shared(const std::string& path, const std::vector<std::pair<std::string, std::string>>&) override {
    auto file = collectively(*this, "open", [&] { return files_.open_for_writing(path, false); });
    return std::make_unique<InProcessSharedFile>(std::move(file),
                                                 [this](const std::string& call, const Bytes& brought) { return share(call, brought); });
  }

 private:
  /// What this rank writes: its own, as with ompio's individual, or (every other seed) the first rank what all have brought, as with
  /// vulcan.
  std::vector<Bytes> share(const std::string& call, const Bytes& mine) {
    const auto met = meet(call, {mine});
    if (world_->options().seed % 2 == 1) return {mine};
    return rank_ == 0 ? firsts(*met) : std::vector<Bytes>{};
  }
  std::shared_ptr<Meeting> meet(const std::string& call, std::vector<Bytes> brought) {
    return world_->meet(group_, world_rank_, call, std::move(brought));
  }
  static std::vector<Bytes> firsts(const Meeting& meeting) {
    std::vector<Bytes> result;
    for (const auto& brought : meeting.brought) result.push_back(brought.at(0));
    return result;
  }
  std::unique_ptr<Request> post(const InProcessPost& content) {
    auto post = std::make_shared<InProcessPost>(content);
    world_->post(world_rank_, post);
    return std::make_unique<InProcessRequest>(world_, world_rank_, std::move(post));
  }

  std::shared_ptr<World> world_;
  RankGroup& group_;
  int world_rank_;
  FileSystem& files_;
  int rank_ = 0;
  int node_count_ = 1;
  std::vector<int> nodes_;
  std::vector<std::string> hosts_;
};

std::uint64_t InProcessComm::reduce_all(std::uint64_t value, Reduction how) {
  constexpr const char* calls[] = {"reduce_all (min)", "reduce_all (max)", "reduce_all (sum)"};
  const auto bytes = reinterpret_cast<const std::byte*>(&value);
  const auto met = meet(calls[static_cast<std::size_t>(how)], {Bytes(bytes, bytes + sizeof value)});
  std::vector<std::uint64_t> values;
  for (const Bytes& brought : firsts(*met)) std::memcpy(&values.emplace_back(), brought.data(), sizeof(std::uint64_t));
  if (how == Reduction::min) return *std::min_element(values.begin(), values.end());
  if (how == Reduction::max) return *std::max_element(values.begin(), values.end());
  std::uint64_t sum = 0;
  for (const std::uint64_t one : values) sum += one;
  return sum;
}

std::vector<Bytes> InProcessComm::all_to_all(std::vector<Bytes> to_each) {
  if (to_each.size() != group_.members.size()) {
    throw Error(ErrorCode::internal,
                "all_to_all with " + std::to_string(to_each.size()) + " parts for " + std::to_string(size()) + " ranks");
  }
  const auto met = meet("all_to_all", std::move(to_each));
  std::vector<Bytes> result;
  for (const auto& brought : met->brought) result.push_back(brought.at(rank_));
  return result;
}

/// How the body of one rank ended.
struct Outcome {
  std::exception_ptr thrown;
  std::string text;
};

void run_rank(const std::shared_ptr<World>& world, int rank, FileSystem& files, const std::function<void(Comm&)>& body, Outcome& outcome) {
  try {
    world->begin(rank);
    InProcessComm comm(world, world->everyone(), rank, files);
    body(comm);
  } catch (const Stopped&) {
    world->end(rank, std::nullopt);
    return;
  } catch (...) {
    outcome.thrown = std::current_exception();
    const Error error = current_error();
    outcome.text = std::string(name_of(error.code())) + ": " + error.what();
  }
  world->end(rank, outcome.thrown ? std::optional(outcome.text) : std::nullopt);
}

/// Rethrows what all ranks threw alike.
void judge(const std::vector<Outcome>& outcomes) {
  std::set<std::string> endings;
  std::string list;
  for (std::size_t rank = 0; rank < outcomes.size(); ++rank) {
    const std::string ending = outcomes[rank].thrown ? "threw \"" + outcomes[rank].text + "\"" : "returned";
    endings.insert(ending);
    list += (rank ? "; rank " : "rank ") + std::to_string(rank) + " " + ending;
  }
  if (endings.size() > 1) throw Error(ErrorCode::internal, "the ranks ended differently: " + list);
  if (!outcomes.empty() && outcomes[0].thrown) std::rethrow_exception(outcomes[0].thrown);
}

}  // namespace

void run_ranks(int ranks, const InProcessOptions& options, const std::function<void(Comm&)>& body) {
  const std::unique_ptr<FileSystem> disk = options.files ? nullptr : posix_file_system();
  const auto world = std::make_shared<World>(ranks, options);
  std::vector<Outcome> outcomes(static_cast<std::size_t>(ranks));
  {
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < ranks; ++rank) {
      threads.emplace_back([&, rank] { run_rank(world, rank, options.files ? *options.files : *disk, body, outcomes[rank]); });
    }
    world->run();
  }
  world->report_messages_left();
  if (world->failure()) throw Error(ErrorCode::internal, *world->failure());
  judge(outcomes);
}

}  // namespace unshard
