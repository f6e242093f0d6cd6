// Messages from rank to rank on communicators whose ranks all share memory: torch.distributed's
// send and recv, and pipelines. Each pair of ranks has a ring of bytes in each direction, which one
// rank writes and the other reads. A message is a head and its bytes. They are copied in and out
// piece by piece, so that both ranks copy at the same time if the message is long. A receive takes
// the first message with its tag from its rank, or from any rank. Messages with other tags that lie
// before it in the ring are moved to memory of the receiver.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/bell.h"
#include "calls/call.h"
#include "calls/member.h"
#include "calls/parts.h"
#include "comm/communicator.h"
#include "engine/started.h"
#include "node/memory/segment.h"

namespace gradred {

class Mailboxes;

// One message that this rank sends or receives, in flight.
class MessageOperation final : public StartedOperation {
 public:
  enum class Way : std::uint8_t { kSend, kReceive };
  static constexpr int kAnyone = -1;

  MessageOperation(std::shared_ptr<Mailboxes> all, Way way, std::byte* data, std::size_t bytes,
                   int peer, std::int64_t tag)
      : all_(std::move(all)), way_(way), data_(data), bytes_(bytes), peer_(peer), tag_(tag) {}

  int source() const { return source_; }  // after the end of a receive: the sender

  std::string waiter() const override;
  std::string waits_for() const override;  // "the recv from rank 3"
  bool needs_no_mpi() const override { return true; }
  bool spins() const override;
  std::size_t bytes() const override { return bytes_; }
  // After the sender has given up: the receiver may still be reading, or waits for the rest.
  bool holds_memory() const override { return holds_memory_; }

 protected:
  bool step() override;
  void give_up(const std::exception_ptr& reason) noexcept override;
  void withdraw() noexcept override;

 private:
  friend class Mailboxes;

  std::string asked() const;
  // Takes a message of `bytes` bytes from rank `from`. Another size than the expected one is an
  // error.
  void take(int from, std::size_t bytes);

  const std::shared_ptr<Mailboxes> all_;
  const Way way_;
  std::byte* data_;  // the bytes that are left to be moved
  const std::size_t bytes_;
  const int peer_;
  const std::int64_t tag_;
  // Guarded by the mutex of `all_`.
  std::size_t left_ = 0;
  bool has_begun_ = false, is_done_ = false;
  int source_ = kAnyone;
  std::string problem_;         // the operation ends with this UsageError
  std::exception_ptr failure_;  // the operation ends with this error
  // The receiver has copied the message when it has read the ring up to here.
  std::uint64_t shown_until_ = 0;
  std::atomic<bool> holds_memory_{false};
  std::uint64_t looked_ns_ = 0;  // last look for lost peers
};

class Mailboxes : public std::enable_shared_from_this<Mailboxes> {
 public:
  // Blocking and collective. Returns nullptr, on all ranks, if some ranks share no memory. Throws
  // TransportError if there is too little memory.
  static std::shared_ptr<Mailboxes> create(std::shared_ptr<Communicator> comm, WaitHook& hook);
  // `processes`: of all ranks, if each can read the memory of all others; else empty.
  Mailboxes(std::shared_ptr<const Parts> parts, std::shared_ptr<Segment> segment,
            std::vector<std::int64_t> processes);

  // Both return at once. The caller keeps the memory alive until the operation has ended.
  std::shared_ptr<MessageOperation> send(const std::byte* data, std::size_t bytes, int to,
                                         std::int64_t tag);
  std::shared_ptr<MessageOperation> receive(std::byte* data, std::size_t bytes, int from,
                                            std::int64_t tag);
  // Ends what is in flight on this rank with an error. Later calls fail as well.
  void close() noexcept;

  int rank() const { return parts_->member.rank; }

 private:
  friend class MessageOperation;
  using Shared = std::shared_ptr<MessageOperation>;

  // One of a ring's two ends. It counts the bytes that have passed it so far.
  struct alignas(64) End {
    std::atomic<std::uint64_t> passed{0};
    Bell bell{};
  };
  static constexpr std::size_t kRingBytes = std::size_t{64} << 10;
  struct Ring {
    End &written, &read;
    std::byte* bytes;  // kRingBytes, allocated when the writer first sends
  };
  struct Head {
    std::uint64_t bytes;
    std::int64_t tag;
    const std::byte* where;  // in the sender's memory; nullptr: the bytes follow
    std::uint64_t unused;
  };
  // Positions in a ring are multiples of this, so that no head wraps around the end of the ring.
  static constexpr std::size_t kStep = sizeof(Head);
  // A message that came before a receive asked for it, and was taken out of the ring to let another
  // one pass.
  struct Early {
    int source;
    std::int64_t tag;
    std::vector<std::byte> bytes;
    bool is_complete = false;
    std::exception_ptr failure{};
    Shared taker{};  // the receive that has asked for it meanwhile
  };
  // The message that is being read from a rank's ring.
  struct Reading {
    bool is_message = false;
    std::size_t left = 0;
    std::byte* to = nullptr;  // nullptr: the message is dropped
    const std::byte* where = nullptr;
    Shared taker{};                  // nullptr: the message is early, or dropped
    std::shared_ptr<Early> early{};  // nullptr: the message is not early
  };

  static std::size_t bytes_of_ends(int ranks);
  Ring ring(int from, int to) const;
  void require_memory(int to);
  Shared start(Shared operation);
  void move(MessageOperation& operation);
  void push(int to);
  bool push_front(int to);
  bool is_shown(const MessageOperation& operation) const;
  void pull(int from);
  bool read_shown(int from);
  void pass(int from, std::size_t bytes);
  bool begin_reading(int from, std::uint64_t written);
  void end_reading(int from);
  bool take_early(const Shared& operation);
  void hand_over(const std::shared_ptr<Early>& early);
  Shared take_posted(int from, std::int64_t tag);
  bool is_wanted(int from) const;
  std::optional<Awaited> awaited(const MessageOperation& operation) const;
  void give_up(MessageOperation& operation) noexcept;
  std::exception_ptr look_for_lost(MessageOperation& operation) const;

  const std::shared_ptr<const Parts> parts_;
  const std::shared_ptr<Segment> segment_;  // nullptr: there is one rank
  const std::vector<std::int64_t> processes_;
  std::unique_ptr<End[]> alone_;  // the memory if there is one rank
  End* const ends_;  // of all rings, by writer and reader: the written end, then the read end
  std::byte* const bytes_;        // of all rings
  std::mutex mutex_;              // guards what follows, and this rank's ends of all rings
  std::vector<bool> has_memory_;  // by rank: whether the ring to it has memory
  bool closed_ = false;
  std::vector<std::deque<Shared>> sends_;  // by rank
  std::deque<Shared> receives_;            // in the order of the calls
  std::vector<Reading> reading_;           // by rank
  std::deque<std::shared_ptr<Early>> early_;
};

}  // namespace gradred
