#include "transport/mpi_transport.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstring>

#include "base/errors.h"
#include "base/signature_mismatch.h"
#include "transport/staging.h"

namespace gradred {
namespace {

// Limits for a message that is cut into pieces: so many pieces are in flight at a time, and each
// eighth piece completes only when its receive is posted. So the MPI buffers less than 2 MiB of a
// message that is not being received.
constexpr std::size_t kPiecesUnderWay = 4, kPiecesPerReceipt = 8;
// The first message to a peer carries the signature, and up to this size also the data. Copying so
// many bytes takes less time than another message.
constexpr std::size_t kInlineBytes = std::size_t{32} << 10;
// How many tests of a waiting operation come between checks of the signatures that have arrived.
constexpr unsigned kTestsPerLook = 64;

constexpr Signature kNothingYet = {~std::uint64_t{0}, ~std::uint64_t{0}};

struct Envelope {
  Signature signature;
  std::array<std::byte, kInlineBytes> data;
};

// The MPI may still write to these buffers if a message matched before it was cancelled.
void keep_for_ever(std::vector<std::unique_ptr<Envelope>> envelopes) {
  for (auto& envelope : envelopes) static_cast<void>(envelope.release());
}

// A channel for buffers in host memory.
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
      post_whole(false, peer, &envelope, sizeof(Signature) + inlined);
      if (bytes <= kInlineBytes) return;
    }
    post(false, peer, const_cast<void*>(data), bytes);
  }

  void recv(int peer, void* data, std::size_t bytes) override {
    if (first(received_, peer)) {
      // Has room for any first message, so that a peer that disagrees is detected and cannot
      // overrun a buffer.
      Envelope& envelope = next_envelope();
      envelope.signature = kNothingYet;
      arrivals_.push_back({peer, &envelope, data, bytes <= kInlineBytes ? bytes : 0, requests_});
      post_whole(true, peer, &envelope, sizeof(Envelope));
      if (bytes <= kInlineBytes) return;
    }
    const auto arrival = std::ranges::find(arrivals_, peer, &Arrival::peer);
    if (arrival != arrivals_.end()) {
      deferred_.push_back({*arrival, data, bytes});
    } else {
      post(true, peer, data, bytes);
    }
  }

  bool test() override {
    if (requests_ == 0) return true;
    if (!deferred_.empty()) post_deferred();
    const bool done = cut_.empty() ? test_all() : test_pieces();
    if (!done || !deferred_.empty()) {
      if (++tests_ % kTestsPerLook == 0) look_at_signatures();
      return false;
    }
    requests_ = 0;
    cut_.clear();
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
      int done = 0;  // a message whose test fails counts as complete
      if (in_flight(i) && mpi_.call.Test(slot(i), &done, mpi_.is.status_ignore) == 0) {
        quiet &= done != 0;
      }
    }
    if (quiet) {
      requests_ = 0;
      cut_.clear();
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
        mpi_.call.Cancel(slot(i));  // cancelling sends is deprecated and crashes MPICH 5
      mpi_.call.Request_free(slot(i));
      quiet = false;
    }
    if (!quiet) keep_for_ever(std::move(envelopes_));
    envelopes_.clear();
    requests_ = 0;
    cut_.clear();
    arrivals_.clear();
    deferred_.clear();
    return quiet;
  }

 private:
  struct Arrival {  // the first message from a peer
    int peer = -1;
    Envelope* envelope = nullptr;
    void* target = nullptr;
    std::size_t bytes = 0;    // bytes that came along with the signature
    std::size_t request = 0;  // its index among the requests
  };

  // A message that follows a first message. Its receive is posted once the signature is known to
  // agree. If a message is longer than its receive, Open MPI's single-copy transport writes past
  // the buffer.
  struct Deferred {
    Arrival first;
    void* data;
    std::size_t bytes;
  };

  // A message that is cut into pieces, or that follows one, since messages to a peer must stay in
  // order.
  struct Cut {
    bool is_receive;
    int peer;
    std::byte* data;   // the part that is not posted yet
    std::size_t left;  // bytes of that part
    std::size_t posted = 0;
    bool is_for(bool receives, int of) const { return is_receive == receives && peer == of; }
    bool is_posted() const { return posted > 0 && left == 0; }
  };

  void post(bool is_receive, int peer, void* data, std::size_t bytes) {
    const bool waits = std::ranges::any_of(
        cut_, [&](const Cut& one) { return !one.is_posted() && one.is_for(is_receive, peer); });
    if (!waits && bytes <= transport_.piece_bytes(peer)) {
      return post_whole(is_receive, peer, data, bytes);
    }
    cut_.push_back({is_receive, peer, static_cast<std::byte*>(data), bytes});
    if (!waits) begin_pieces(cut_.size() - 1);
  }

  void begin_pieces(std::size_t number) {
    for (std::size_t i = 0; i < kPiecesUnderWay && !cut_[number].is_posted(); ++i) {
      make_room();
      cut_of_[requests_] = number + 1;
      post_piece(requests_++);
    }
  }

  // Posts the next piece in place of a completed request.
  void post_piece(std::size_t place) {
    Cut& cut = cut_[cut_of_[place] - 1];
    const std::size_t bytes = std::min(cut.left, transport_.piece_bytes(cut.peer));
    const bool wants_receipt = ++cut.posted % kPiecesPerReceipt == 0;
    post_at(place, cut.is_receive, cut.peer, cut.data, bytes, wants_receipt);
    cut.data += bytes;
    cut.left -= bytes;
    if (cut.left > 0) return;
    const auto next = std::ranges::find_if(cut_, [&](const Cut& one) {
      return one.posted == 0 && one.is_for(cut.is_receive, cut.peer);
    });
    if (next != cut_.end()) begin_pieces(static_cast<std::size_t>(next - cut_.begin()));
  }

  bool test_all() {
    int done = 0;
    check_test(mpi_.call.Testall(static_cast<int>(requests_), storage_.data(), &done,
                                 mpi_.is.status_ignore));
    return done != 0;
  }

  bool test_pieces() {
    const std::size_t looks = requests_;
    int done = 0;
    check_test(mpi_.call.Testsome(static_cast<int>(looks), storage_.data(), &done, done_.data(),
                                  mpi_.is.status_ignore));
    // MPI_UNDEFINED: there are no active requests.
    if (done < 0 || static_cast<std::size_t>(done) > looks) return true;
    for (std::size_t i = 0; i < static_cast<std::size_t>(done); ++i) {
      const auto place = static_cast<std::size_t>(done_[i]);
      if (cut_of_[place] > 0 && cut_[cut_of_[place] - 1].left > 0) post_piece(place);
    }
    return false;
  }

  void check_test(int code) {
    if (code == 0) return;
    look_at_signatures();
    mpi_.check(code, "a message of a collective call");
  }

  void post_deferred() {
    blocked_.clear();
    std::erase_if(deferred_, [&](const Deferred& one) {
      const int peer = one.first.peer;
      if (std::ranges::find(blocked_, peer) != blocked_.end() || !has_arrived(one.first)) {
        blocked_.push_back(peer);
        return false;
      }
      compare(one.first);
      post(true, peer, one.data, one.bytes);
      return true;
    });
  }

  bool has_arrived(const Arrival& arrival) {
    int arrived = 0;
    if (!in_flight(arrival.request)) return arrival.envelope->signature != kNothingYet;
    mpi_.check(mpi_.call.Test(slot(arrival.request), &arrived, mpi_.is.status_ignore),
               "a message of a collective call");
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
      // Left uninitialized, so that its pages are allocated when they are first used.
      envelopes_.push_back(std::make_unique_for_overwrite<Envelope>());
    }
    return *envelopes_[envelopes_used_++];
  }

  void post_whole(bool is_receive, int peer, void* data, std::size_t bytes) {
    make_room();
    cut_of_[requests_] = 0;
    post_at(requests_, is_receive, peer, data, bytes, false);
    ++requests_;
  }

  // A send with `receipt` completes only after the matching receive has started.
  void post_at(std::size_t place, bool is_receive, int peer, void* data, std::size_t bytes,
               bool receipt) {
    is_receive_[place] = is_receive;
    const auto count = static_cast<int>(bytes);
    if (is_receive) {
      return mpi_.check(mpi_.call.Irecv(data, count, mpi_.is.byte_type, peer, tag_,
                                        transport_.comm(), slot(place)),
                        "receiving from a peer");
    }
    const auto send = receipt ? mpi_.call.Issend : mpi_.call.Isend;
    mpi_.check(send(data, count, mpi_.is.byte_type, peer, tag_, transport_.comm(), slot(place)),
               "sending to a peer");
  }

  // Requests are stored densely in the MPI's own handle size, so that the MPI can read them as an
  // array.
  mpi::Handle* slot(std::size_t i) {
    return reinterpret_cast<mpi::Handle*>(reinterpret_cast<std::byte*>(storage_.data()) +
                                          i * mpi_.is.handle_bytes);
  }
  bool in_flight(std::size_t i) {
    mpi::Handle value = 0;
    std::memcpy(&value, slot(i), mpi_.is.handle_bytes);
    return mpi_.normalise(value) != mpi_.is.request_null;
  }
  // Makes room for one more request.
  void make_room() {
    if (storage_.size() >= requests_ + 2) return;
    storage_.resize(2 * requests_ + 8);
    is_receive_.resize(storage_.size());
    cut_of_.resize(storage_.size());
    done_.resize(storage_.size());
  }

  void look_at_signatures() {
    for (const Arrival& arrival : arrivals_) {
      if (has_arrived(arrival)) compare(arrival);
    }
  }

  void compare(const Arrival& arrival) const {
    if (arrival.envelope->signature == signature_) return;
    throw SignatureMismatch({transport_.rank(), arrival.peer}, signature_,
                            arrival.envelope->signature);
  }

  const mpi::Mpi& mpi_;
  const MpiTransport& transport_;
  int tag_ = 0;
  Signature signature_{};
  std::uint64_t operation_ = 0;
  // For each peer, the last operation that sent it a message, and that received one from it.
  std::vector<std::uint64_t> sent_, received_;
  std::vector<std::unique_ptr<Envelope>> envelopes_;
  std::size_t envelopes_used_ = 0;
  std::vector<Arrival> arrivals_;
  std::vector<Deferred> deferred_;
  std::vector<int> blocked_;  // peers in post_deferred(): keeps each peer's receives in order
  std::vector<mpi::Handle> storage_;
  std::vector<bool> is_receive_;
  std::vector<std::size_t> cut_of_;  // by request: 1 + its index in cut_; 0: not cut
  std::vector<int> done_;            // indices of completed requests
  std::vector<Cut> cut_;
  std::size_t requests_ = 0;
  unsigned tests_ = 0;
  bool draining_ = false;
};

}  // namespace

int largest_tag() {
  constexpr int kAlways = 32767;  // every MPI has these tags
  static std::atomic<int> known{0};
  if (const int largest = known.load(std::memory_order_relaxed); largest != 0) return largest;
  if (!mpi::initialized()) return kAlways;
  const mpi::Mpi& mpi = mpi::get();
  int* bound = nullptr;
  int found = 0;
  mpi.check(mpi.call.Comm_get_attr(mpi.is.comm_world, mpi.is.tag_ub, &bound, &found),
            "MPI_Comm_get_attr");
  const int largest = found != 0 && bound != nullptr ? *bound : kAlways;
  known.store(largest, std::memory_order_relaxed);
  return largest;
}

TagSpace TagSpace::make(int id, int largest_tag) {
  // The number of bits that may hold any value.
  const int bits = static_cast<int>(std::bit_width(static_cast<unsigned>(largest_tag))) - 1;
  const int own = std::clamp(bits - 12, 4, 14);
  return {id, own, std::min(4, own / 3)};
}

void MpiTransport::cut_messages(const std::vector<int>& host_of, std::size_t bytes) {
  host_of_ = host_of;
  piece_bytes_ = bytes;
}

void MpiTransport::cut_messages_as(const MpiTransport& other) {
  cut_messages(other.host_of_, other.piece_bytes_);
}

std::size_t MpiTransport::piece_bytes(int peer) const {
  const bool whole = piece_bytes_ == 0 || host_of_[static_cast<std::size_t>(peer)] ==
                                              host_of_[static_cast<std::size_t>(rank_)];
  return whole ? kLargestMessage : piece_bytes_;
}

int TagSpace::most_ids(int largest_tag) { return (largest_tag >> make(0, largest_tag).bits) - 1; }

// The MPI never gets an address in device memory, since some MPIs crash on it.
std::unique_ptr<Channel> MpiTransport::open(Memory memory) {
  auto channel = std::make_unique<MpiChannel>(*this);
  if (memory.is_host()) return channel;
  return staged(std::move(channel), memory);
}

}  // namespace gradred
