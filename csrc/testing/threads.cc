#include "testing/threads.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <compare>
#include <deque>
#include <list>
#include <map>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "base/errors.h"
#include "base/rank_names.h"

namespace gradred {
namespace {

// Identifies an operation: its tag, and how often this rank has used the tag before. All ranks
// start the same operations, so they agree on both. Messages left by an abandoned operation match
// no later operation.
struct Operation {
  std::uint32_t tag = 0;
  std::uint64_t use = 0;

  auto operator<=>(const Operation&) const = default;
};

// A send or receive in the mailbox of its destination, waiting for its counterpart.
struct Post {
  int source = -1;
  Operation operation;
  Signature signature;
  const void* data = nullptr;  // source of a send
  void* target = nullptr;      // destination of a receive
  Memory memory{};             // of data or target
  std::size_t bytes = 0;
  std::vector<std::byte> copy;                  // data of an eager send, which has no other owner
  std::atomic<std::size_t>* pending = nullptr;  // the owner's count of incomplete messages

  bool matches(const Post& other) const {
    return source == other.source && operation == other.operation;
  }
};

// Messages sent to one rank, and receives that it has posted. The mutex also protects the memory of
// all posts: data is copied and posts are withdrawn only while it is held.
struct Mailbox {
  std::mutex mutex;
  std::list<Post> sends;
  std::list<Post> receives;
  std::map<std::uint32_t, std::uint64_t> uses;  // per tag, by this rank
};

struct Poison {
  std::string reason;
  Cause cause = Cause::kTransport;
};

struct Refusal {
  std::string reason;
  bool usage = true;  // the callers disagree; false: the schedule is wrong
};

}  // namespace

class ThreadsWorld::State {
 public:
  State(int size, Protocol protocol)
      : protocol(protocol), mailboxes(static_cast<std::size_t>(size)) {}

  const Protocol protocol;
  std::deque<Mailbox> mailboxes;

  Mailbox& mailbox(int rank) { return mailboxes[static_cast<std::size_t>(rank)]; }
  int size() const { return static_cast<int>(mailboxes.size()); }

  void poison(Poison poison) {
    const std::lock_guard lock(mutex_);
    if (!poison_) poison_ = std::move(poison);
    failed_.store(true, std::memory_order_release);
  }
  // Makes the operation fail on all ranks. Other operations continue.
  void refuse(const Operation& operation, Refusal refusal) {
    const std::lock_guard lock(mutex_);
    refused_.try_emplace(operation, std::move(refusal));
    failed_.store(true, std::memory_order_release);
  }
  void throw_if_failed(const Operation& operation) {
    if (!failed_.load(std::memory_order_acquire)) return;
    const std::lock_guard lock(mutex_);
    if (const auto found = refused_.find(operation); found != refused_.end()) {
      if (found->second.usage) throw UsageError(found->second.reason);
      check(false, found->second.reason.c_str());
    }
    if (!poison_) return;
    if (poison_->cause == Cause::kUsage) throw UsageError(poison_->reason);
    if (poison_->cause == Cause::kPeerLost) throw PeerLost(poison_->reason);
    throw TransportError(poison_->reason);
  }

 private:
  // This flag avoids the lock in test(). Polling must not order the ranks' memory accesses:
  // otherwise a thread sanitizer would miss a schedule that accesses memory still in flight.
  std::atomic<bool> failed_ = false;
  std::mutex mutex_;
  std::optional<Poison> poison_;
  std::map<Operation, Refusal> refused_;
};

namespace {

class ThreadsChannel : public Channel {
 public:
  ThreadsChannel(std::shared_ptr<ThreadsWorld::State> world, int rank, Memory memory)
      : world_(std::move(world)), rank_(rank), memory_(memory) {}
  ~ThreadsChannel() override { ThreadsChannel::abandon(); }
  ThreadsChannel(const ThreadsChannel&) = delete;  // the mailboxes point to pending_
  ThreadsChannel& operator=(const ThreadsChannel&) = delete;

  void begin(std::uint32_t tag, const Signature& signature) override {
    check(pending_.load(std::memory_order_acquire) == 0, "begin() with messages in flight");
    Mailbox& own = world_->mailbox(rank_);
    const std::lock_guard lock(own.mutex);
    operation_ = {tag, own.uses[tag]++};
    signature_ = signature;
  }

  void send(int peer, const void* data, std::size_t bytes) override {
    check(valid(peer), "send() to a rank that does not exist");
    Post post = make_post(rank_, bytes);
    post.data = data;
    post.memory = memory_;
    if (world_->protocol == Protocol::kRendezvous) {
      wait_for(post);
      return give(peer, std::move(post));
    }
    post.copy.resize(bytes);
    stream(memory_).copy(post.copy.data(), data, bytes);
    post.data = post.copy.data();
    post.memory = Memory();
    eager_.emplace_back(peer, std::move(post));
    give_eager();
  }

  void recv(int peer, void* data, std::size_t bytes) override {
    check(valid(peer), "recv() from a rank that does not exist");
    Post post = make_post(peer, bytes);
    post.target = data;
    post.memory = memory_;
    wait_for(post);
    Mailbox& box = world_->mailbox(rank_);
    const std::lock_guard lock(box.mutex);
    if (auto send = find(box.sends, post); send != box.sends.end()) {
      if (deliver(*send, post, rank_)) {
        box.sends.erase(send);
      } else {
        forget(post);
      }
      return;
    }
    box.receives.push_back(std::move(post));
  }

  bool test() override {
    world_->throw_if_failed(operation_);
    give_eager();
    complete_deliveries();
    // Only the receiver counts an eager message as pending, and it waits for this delivery.
    return eager_.empty() && deliveries_.empty() && pending_.load(std::memory_order_acquire) == 0;
  }

  bool abandon() noexcept override {
    bool quiet = true;
    for (auto& [memory, stream] : streams_) quiet &= stream.finish();
    complete_deliveries();
    eager_.clear();
    const auto mine = [this](const Post& post) { return post.pending == &pending_; };
    for (int rank = 0; rank < world_->size(); ++rank) {
      Mailbox& box = world_->mailbox(rank);
      const std::lock_guard lock(box.mutex);
      const std::size_t withdrawn = box.sends.remove_if(mine) + box.receives.remove_if(mine);
      pending_.fetch_sub(withdrawn, std::memory_order_relaxed);
    }
    // Peers are copying the remaining messages.
    while (pending_.load(std::memory_order_acquire) != 0) std::this_thread::yield();
    return quiet;
  }

 private:
  bool valid(int peer) const { return peer >= 0 && peer < world_->size() && peer != rank_; }

  Post make_post(int source, std::size_t bytes) const {
    Post post;
    post.source = source;
    post.operation = operation_;
    post.signature = signature_;
    post.bytes = bytes;
    return post;
  }

  void wait_for(Post& post) {
    post.pending = &pending_;
    pending_.fetch_add(1, std::memory_order_relaxed);
  }

  static void forget(const Post& post) {
    if (post.pending != nullptr) post.pending->fetch_sub(1, std::memory_order_relaxed);
  }

  static std::list<Post>::iterator find(std::list<Post>& posts, const Post& wanted) {
    return std::find_if(posts.begin(), posts.end(),
                        [&](const Post& post) { return post.matches(wanted); });
  }

  void give(int peer, Post post) {
    Mailbox& box = world_->mailbox(peer);
    const std::lock_guard lock(box.mutex);
    if (auto receive = find(box.receives, post); receive != box.receives.end()) {
      if (deliver(post, *receive, peer)) {
        box.receives.erase(receive);
      } else {
        forget(post);
      }
      return;
    }
    box.sends.push_back(std::move(post));
  }

  // Delivers the eager messages whose copies are complete, in order.
  void give_eager() {
    if (eager_.empty() || !stream(memory_).ready()) return;
    for (auto& [peer, post] : eager_) give(peer, std::move(post));
    eager_.clear();
  }

  // Copies the data, and completes both messages after that. If they do not match, it makes the
  // operation fail and leaves the waiting message unchanged.
  bool deliver(Post& send, const Post& receive, int receiver) {
    if (send.signature != receive.signature) {
      world_->refuse(operation_, {disagreement_text(RankNames().of(send.source), send.signature,
                                                    RankNames().of(receiver), receive.signature),
                                  true});
      return false;
    }
    if (send.bytes != receive.bytes) {
      world_->refuse(operation_, {"a message has another size than its receive", false});
      return false;
    }
    Stream& copying = stream(send.memory.is_host() ? receive.memory : send.memory);
    copying.copy(receive.target, send.data, send.bytes);
    deliveries_.push_back({&copying, {send.pending, receive.pending}, std::move(send.copy)});
    complete_deliveries();
    return true;
  }

  void complete_deliveries() {
    std::erase_if(deliveries_, [](const Delivery& delivery) {
      if (!delivery.stream->ready()) return false;
      // The owner may free its memory and this counter as soon as the count is zero.
      for (std::atomic<std::size_t>* pending : delivery.pending) {
        if (pending != nullptr) pending->fetch_sub(1, std::memory_order_release);
      }
      return true;
    });
  }

  // The stream for a memory. A device copies its own memory, whichever rank uses it.
  Stream& stream(Memory memory) {
    const auto found = std::ranges::find(streams_, memory, &std::pair<Memory, Stream>::first);
    return found != streams_.end() ? found->second : streams_.emplace_back(memory, memory).second;
  }

  // A message whose data is being copied, and the counters to decrease after that.
  struct Delivery {
    Stream* stream;
    std::array<std::atomic<std::size_t>*, 2> pending;
    std::vector<std::byte> copy;
  };

  const std::shared_ptr<ThreadsWorld::State> world_;
  const int rank_;
  const Memory memory_;
  std::deque<std::pair<Memory, Stream>> streams_;  // deque: streams in use keep their addresses
  std::vector<std::pair<int, Post>> eager_;        // peers, and messages that are being copied
  std::vector<Delivery> deliveries_;
  Operation operation_;
  Signature signature_;
  std::atomic<std::size_t> pending_ = 0;
};

class ThreadsTransport : public Transport {
 public:
  ThreadsTransport(std::shared_ptr<ThreadsWorld::State> world, int rank)
      : world_(std::move(world)), rank_(rank) {}

  int rank() const override { return rank_; }
  int size() const override { return world_->size(); }
  std::unique_ptr<Channel> open(Memory memory) override {
    return std::make_unique<ThreadsChannel>(world_, rank_, memory);
  }

 private:
  const std::shared_ptr<ThreadsWorld::State> world_;
  const int rank_;
};

}  // namespace

ThreadsWorld::ThreadsWorld(int size, Protocol protocol) {
  check(size > 0, "a world needs at least one rank");
  state_ = std::make_shared<State>(size, protocol);
}

std::unique_ptr<Transport> ThreadsWorld::transport(int rank) {
  check(rank >= 0 && rank < state_->size(), "a transport for a rank that does not exist");
  return std::make_unique<ThreadsTransport>(state_, rank);
}

void ThreadsWorld::poison(int rank, const std::string& reason, Cause cause) {
  state_->poison({"rank " + std::to_string(rank) + " failed: " + reason, cause});
}

}  // namespace gradred
