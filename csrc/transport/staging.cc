#include "transport/staging.h"

#include <utility>
#include <vector>

namespace gradred {
namespace {

class StagingChannel : public Channel {
 public:
  StagingChannel(std::unique_ptr<Channel> inner, Memory memory)
      : stream_(memory), inner_(std::move(inner)) {}

  void begin(std::uint32_t tag, const Signature& signature) override {
    forget_round();
    inner_->begin(tag, signature);
  }

  void send(int peer, const void* data, std::size_t bytes) override {
    std::byte* const staged = room(bytes);
    stream_.copy(staged, data, bytes);
    sends_.push_back({peer, staged, bytes});
  }

  void recv(int peer, void* data, std::size_t bytes) override {
    std::byte* const staged = room(bytes);
    arrivals_.push_back({data, staged, bytes});
    inner_->recv(peer, staged, bytes);
  }

  bool test() override {
    if (!sends_.empty()) {
      if (!stream_.ready()) return false;
      for (const Send& send : sends_) inner_->send(send.peer, send.staged, send.bytes);
      sends_.clear();
    }
    if (!arrived_) {
      if (!inner_->test()) return false;
      for (const Arrival& one : arrivals_) stream_.copy(one.target, one.staged, one.bytes);
      arrived_ = true;
    }
    if (!stream_.ready()) return false;
    forget_round();
    return true;
  }

  bool drain() override {
    sends_.clear();
    return inner_->drain() && stream_.ready();
  }

  bool abandon() noexcept override {
    const bool done = stream_.finish();
    const bool quiet = inner_->abandon() && done;
    if (!quiet) {
      for (Allocation& one : staged_) one.keep_for_ever();
    }
    staged_.clear();
    forget_round();
    return done;  // the transport below never had the caller's memory
  }

 private:
  struct Send {
    int peer;
    const std::byte* staged;
    std::size_t bytes;
  };
  struct Arrival {
    void* target;
    const std::byte* staged;
    std::size_t bytes;
  };

  // Returns a staging buffer for a message of this round. Buffers are reused in later rounds.
  std::byte* room(std::size_t bytes) {
    if (used_ == staged_.size()) staged_.emplace_back();
    Allocation& one = staged_[used_++];
    if (one.bytes() < bytes) one = Allocation(Memory(), bytes);
    return one.data();
  }

  void forget_round() {
    sends_.clear();
    arrivals_.clear();
    used_ = 0;
    arrived_ = false;
  }

  Stream stream_;
  std::vector<Allocation> staged_;
  std::size_t used_ = 0;
  std::vector<Send> sends_;  // until their copies to host memory are complete
  std::vector<Arrival> arrivals_;
  bool arrived_ = false;  // the messages have arrived and are being copied to their targets
  const std::unique_ptr<Channel> inner_;  // last: until it is destroyed, peers may read staged_
};

}  // namespace

std::unique_ptr<Channel> staged(std::unique_ptr<Channel> inner, Memory memory) {
  return std::make_unique<StagingChannel>(std::move(inner), memory);
}

std::unique_ptr<Channel> StagingTransport::open(Memory memory) {
  std::unique_ptr<Channel> inner = inner_.open(Memory());
  return memory.is_host() ? std::move(inner) : staged(std::move(inner), memory);
}

}  // namespace gradred
