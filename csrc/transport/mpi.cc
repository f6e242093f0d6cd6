#include "transport/mpi.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "base/errors.h"
#include "transport/staging.h"

namespace gradred {
namespace {

// MPI counts are ints, and Open MPI's transports prefer less than 2 GiB: longer messages go in
// pieces.
constexpr std::size_t kLargestPiece = std::size_t{1} << 30;
// The first message to a peer carries the signature before its data, in one piece up to this size:
// to copy so much takes less time than a message of its own.
constexpr std::size_t kInlineBytes = std::size_t{32} << 10;
// Between looks at the signatures that have arrived while an operation waits.
constexpr unsigned kTestsPerLook = 64;

constexpr Signature kNothingYet = {~std::uint64_t{0}, ~std::uint64_t{0}};

struct Envelope {
  Signature signature;
  std::array<std::byte, kInlineBytes> data;
};

// The MPI may still write there: a message that matched before it could be cancelled.
void keep_for_ever(std::vector<std::unique_ptr<Envelope>> envelopes) {
  for (auto& envelope : envelopes) static_cast<void>(envelope.release());
}

// Of buffers in host memory.
class MpiChannel final : public Channel {
 public:
  explicit MpiChannel(const MpiTransport& transport)
      : mpi_(mpi::get()),
        transport_(transport),
        sent_(static_cast<std::size_t>(transport.size())),
        received_(static_cast<std::size_t>(transport.size())) {}
  ~MpiChannel() override { abandon(); }

  void begin(std::uint32_t tag, const Signature& signature) override {
    tag_ = static_cast<int>(tag);
    draining_ = false;
    signature_ = signature;
    ++operation_;
    envelopes_used_ = 0;
  }

  void send(int peer, const void* data, std::size_t bytes) override {
    if (first(sent_, peer)) {
      Envelope& envelope = next_envelope();
      envelope.signature = signature_;
      const std::size_t inlined = bytes <= kInlineBytes ? bytes : 0;
      if (inlined > 0) std::memcpy(envelope.data.data(), data, inlined);
      post_send(peer, &envelope, sizeof(Signature) + inlined);
      if (bytes <= kInlineBytes) return;
    }
    pieces(static_cast<const std::byte*>(data), bytes,
           [&](const std::byte* piece, std::size_t n) { post_send(peer, piece, n); });
  }

  void recv(int peer, void* data, std::size_t bytes) override {
    if (first(received_, peer)) {
      // Room for any first message: a peer that disagrees must not overrun, only be found out.
      Envelope& envelope = next_envelope();
      envelope.signature = kNothingYet;
      arrivals_.push_back({peer, &envelope, data, bytes <= kInlineBytes ? bytes : 0, requests_});
      post_recv(peer, &envelope, sizeof(Envelope));
      if (bytes <= kInlineBytes) return;
    }
    const auto arrival = std::ranges::find(arrivals_, peer, &Arrival::peer);
    if (arrival != arrivals_.end()) {
      deferred_.push_back({*arrival, data, bytes});
    } else {
      post_pieces(peer, data, bytes);
    }
  }

  void post_pieces(int peer, void* data, std::size_t bytes) {
    pieces(static_cast<std::byte*>(data), bytes,
           [&](std::byte* piece, std::size_t n) { post_recv(peer, piece, n); });
  }

  bool test() override {
    if (requests_ == 0) return true;
    if (!deferred_.empty()) post_deferred();
    int done = 0;
    const int code = mpi_.call.Testall(static_cast<int>(requests_), storage_.data(), &done,
                                       mpi_.is.status_ignore);
    if (code != 0) {
      look_at_signatures();
      mpi_.check(code, "a message of an allreduce");
    }
    if (done == 0 || !deferred_.empty()) {
      if (++tests_ % kTestsPerLook == 0) look_at_signatures();
      return false;
    }
    requests_ = 0;
    for (const Arrival& arrival : arrivals_) {
      compare(arrival);
      if (arrival.bytes > 0)
        std::memcpy(arrival.target, arrival.envelope->data.data(), arrival.bytes);
    }
    arrivals_.clear();
    return true;
  }

  bool drain() override {
    if (!draining_) {
      deferred_.clear();
      for (std::size_t i = 0; i < requests_; ++i) {
        if (is_receive_[i] && in_flight(i)) mpi_.call.Cancel(slot(i));
      }
      draining_ = true;
    }
    bool quiet = true;
    for (std::size_t i = 0; i < requests_; ++i) {
      int done = 0;  // a message that failed is done as well
      if (in_flight(i) && mpi_.call.Test(slot(i), &done, mpi_.is.status_ignore) == 0) {
        quiet &= done != 0;
      }
    }
    if (quiet) {
      requests_ = 0;
      arrivals_.clear();
    }
    return quiet;
  }

  bool abandon() noexcept override {
    bool quiet = true;
    for (std::size_t i = 0; i < requests_; ++i) {
      int done = 0;
      if (!in_flight(i)) continue;
      if (mpi_.call.Test(slot(i), &done, mpi_.is.status_ignore) != 0 || done != 0) continue;
      if (is_receive_[i])
        mpi_.call.Cancel(slot(i));  // of a send it is deprecated, and crashes MPICH 5
      mpi_.call.Request_free(slot(i));
      quiet = false;
    }
    if (!quiet) keep_for_ever(std::move(envelopes_));
    envelopes_.clear();
    requests_ = 0;
    arrivals_.clear();
    deferred_.clear();
    return quiet;
  }

 private:
  struct Arrival {  // a first message from a peer
    int peer = -1;
    Envelope* envelope = nullptr;
    void* target = nullptr;
    std::size_t bytes = 0;    // that came along with the signature
    std::size_t request = 0;  // its place among the requests
  };

  // What follows a first message. It is received once the signature is known to agree: where a
  // message is longer than its receive, Open MPI's single-copy transport writes behind the buffer.
  struct Deferred {
    Arrival first;
    void* data;
    std::size_t bytes;
  };

  void post_deferred() {
    blocked_.clear();
    std::erase_if(deferred_, [&](const Deferred& one) {
      const int peer = one.first.peer;
      if (std::ranges::find(blocked_, peer) != blocked_.end() || !has_arrived(one.first)) {
        blocked_.push_back(peer);
        return false;
      }
      compare(one.first);
      post_pieces(peer, one.data, one.bytes);
      return true;
    });
  }

  bool has_arrived(const Arrival& arrival) {
    int arrived = 0;
    if (!in_flight(arrival.request)) return arrival.envelope->signature != kNothingYet;
    mpi_.check(mpi_.call.Test(slot(arrival.request), &arrived, mpi_.is.status_ignore),
               "a message of an allreduce");
    return arrived != 0;
  }

  bool first(std::vector<std::uint64_t>& last_operation, int peer) const {
    std::uint64_t& last = last_operation[static_cast<std::size_t>(peer)];
    const bool is_first = last != operation_;
    last = operation_;
    return is_first;
  }

  Envelope& next_envelope() {
    if (envelopes_used_ == envelopes_.size()) {
      envelopes_.push_back(std::make_unique_for_overwrite<Envelope>());  // pages come with use
    }
    return *envelopes_[envelopes_used_++];
  }

  template <class Byte, class Post>
  void pieces(Byte* data, std::size_t bytes, Post post) {
    do {
      const std::size_t piece = std::min(bytes, kLargestPiece);
      post(data, piece);
      data += piece;
      bytes -= piece;
    } while (bytes > 0);
  }

  void post_send(int peer, const void* data, std::size_t bytes) {
    mpi_.check(mpi_.call.Isend(data, static_cast<int>(bytes), mpi_.is.byte_type, peer, tag_,
                               transport_.comm(), next_request()),
               "sending to a peer");
    is_receive_[requests_++] = false;
  }

  void post_recv(int peer, void* data, std::size_t bytes) {
    mpi_.check(mpi_.call.Irecv(data, static_cast<int>(bytes), mpi_.is.byte_type, peer, tag_,
                               transport_.comm(), next_request()),
               "receiving from a peer");
    is_receive_[requests_++] = true;
  }

  // Requests stand densely in the MPI's own handle size, so that Testall can read them.
  mpi::Handle* slot(std::size_t i) {
    return reinterpret_cast<mpi::Handle*>(reinterpret_cast<std::byte*>(storage_.data()) +
                                          i * mpi_.is.handle_bytes);
  }
  bool in_flight(std::size_t i) {
    mpi::Handle value = 0;
    std::memcpy(&value, slot(i), mpi_.is.handle_bytes);
    return mpi_.normalise(value) != mpi_.is.request_null;
  }
  mpi::Handle* next_request() {
    if (storage_.size() < requests_ + 2) {
      storage_.resize(2 * requests_ + 8);
      is_receive_.resize(storage_.size());
    }
    return slot(requests_);
  }

  void look_at_signatures() {
    for (const Arrival& arrival : arrivals_) {
      if (has_arrived(arrival)) compare(arrival);
    }
  }

  void compare(const Arrival& arrival) const {
    if (arrival.envelope->signature == signature_) return;
    throw UsageError(disagreement_text(transport_.rank(), signature_, arrival.peer,
                                       arrival.envelope->signature));
  }

  const mpi::Mpi& mpi_;
  const MpiTransport& transport_;
  int tag_ = 0;
  Signature signature_{};
  std::uint64_t operation_ = 0;
  std::vector<std::uint64_t> sent_, received_;  // the last operation that exchanged with each peer
  std::vector<std::unique_ptr<Envelope>> envelopes_;
  std::size_t envelopes_used_ = 0;
  std::vector<Arrival> arrivals_;
  std::vector<Deferred> deferred_;
  std::vector<int> blocked_;  // peers, in post_deferred(): their receives are posted in their order
  std::vector<mpi::Handle> storage_;
  std::vector<bool> is_receive_;
  std::size_t requests_ = 0;
  unsigned tests_ = 0;
  bool draining_ = false;
};

}  // namespace

TagSpace TagSpace::make(int id, int largest_tag) {
  const int bits =
      static_cast<int>(std::bit_width(static_cast<unsigned>(largest_tag))) - 1;  // whole bits
  const int own = std::clamp(bits - 12, 4, 14);
  return {id, own, std::min(4, own / 3)};
}

int TagSpace::most_ids(int largest_tag) { return (largest_tag >> make(0, largest_tag).bits) - 1; }

// No MPI that mpi4py loads is asked to read a device's memory: some cannot, and crash.
std::unique_ptr<Channel> MpiTransport::open(Memory memory) {
  auto channel = std::make_unique<MpiChannel>(*this);
  if (memory.is_host()) return channel;
  return staged(std::move(channel), memory);
}

}  // namespace gradred
