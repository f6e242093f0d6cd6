#include "comm/mailboxes.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "base/clock.h"
#include "base/copy_bytes.h"
#include "base/errors.h"
#include "base/random.h"
#include "comm/own_calls.h"
#include "comm/set_up/set_up_calls.h"
#include "engine/fork_guard.h"
#include "node/group/group.h"
#include "node/memory/process_memory.h"

namespace gradred {
namespace {

// Longer messages are shown: the receiver reads them in the sender's memory. Below this size,
// copies through the ring take less time than a system call.
constexpr std::size_t kLongMessage = std::size_t{32} << 10;
// The most that is copied before the lock is released (shown messages), and before the other end is
// notified (messages in the ring).
constexpr std::size_t kShownPiece = std::size_t{1} << 20, kMessagePiece = std::size_t{16} << 10;

std::size_t in_steps(std::size_t bytes, std::size_t step) {
  return (bytes + step - 1) / step * step;
}

// Copies between memory and a ring of `length` bytes, from `position` on.
template <class Copy>
void around(std::size_t length, std::uint64_t position, std::size_t bytes, Copy copy) {
  const std::size_t at = static_cast<std::size_t>(position % length);
  const std::size_t first = std::min(bytes, length - at);
  copy(at, 0, first);
  if (bytes > first) copy(0, first, bytes - first);
}

// Collective: the processes of all ranks, if each rank can read what all others show; else none.
std::vector<std::int64_t> readable_processes(Bootstrap& calls) {
  struct Shown {
    std::int64_t process;
    const std::uint64_t* where;
    std::uint64_t content;
  };
  const auto size = static_cast<std::size_t>(calls.size());
  const std::uint64_t content = random_number();
  const Shown mine{getpid(), &content, content};
  std::vector<Shown> all(size);
  allow_reading();
  calls.allgather(&mine, sizeof mine, all.data());
  char reads_all = 1;
  std::vector<std::int64_t> processes;
  for (const Shown& one : all) {
    std::uint64_t found = 0;
    const int error = read_process(one.process, &found, one.where, sizeof found);
    if (error != 0 || found != one.content) reads_all = 0;
    processes.push_back(one.process);
  }
  std::vector<char> do_all(size);
  calls.allgather(&reads_all, 1, do_all.data());  // no rank returns before all have read
  if (std::ranges::count(do_all, 1) != calls.size()) processes.clear();
  return processes;
}

}  // namespace

// ---- one message --------------------------------------------------------------------------------

std::string MessageOperation::waiter() const { return all_->parts_->liveness.own_name(); }

std::string MessageOperation::asked() const {
  const std::string call = way_ == Way::kSend ? "send to " : "recv from ";
  if (peer_ == kAnyone) return call + "any rank";
  return call + "rank " + std::to_string(all_->parts_->liveness.names().called(peer_));
}

std::string MessageOperation::waits_for() const { return "the " + asked(); }

void MessageOperation::take(int from, std::size_t bytes) {
  source_ = from;
  if (bytes == bytes_) return;
  failure_ = std::make_exception_ptr(UsageError(
      asked() + ": the tensor has " + std::to_string(bytes_) + " bytes, and " +
      std::to_string(bytes) + " bytes have come. Pass a tensor of the size of the sender's"));
}

bool MessageOperation::spins() const { return all_->parts_->node_path.spins(); }

// The look for a lost peer comes first, because the peer may have sent before it ended.
bool MessageOperation::step() {
  const std::exception_ptr lost = all_->look_for_lost(*this);
  const std::lock_guard lock(all_->mutex_);
  if (!is_done_) all_->move(*this);
  if (is_done_) {
    if (failure_ != nullptr) std::rethrow_exception(failure_);
    return true;
  }
  if (lost != nullptr) std::rethrow_exception(lost);
  const auto awaited = all_->awaited(*this);
  stop_at(awaited ? Progress{Progress::State::kAwaits, *awaited, WaitCause::kPeers}
                  : Progress{Progress::State::kPolls, {}, WaitCause::kPeers});
  return false;
}

void MessageOperation::give_up(const std::exception_ptr&) noexcept { all_->give_up(*this); }
void MessageOperation::withdraw() noexcept { all_->give_up(*this); }

// ---- all messages of a communicator -------------------------------------------------------------

// The bytes of both ends of all rings, in whole pages. They lie before the bytes of all rings.
std::size_t Mailboxes::bytes_of_ends(int ranks) {
  const auto rings = static_cast<std::size_t>(ranks) * static_cast<std::size_t>(ranks);
  return in_steps(rings * 2 * sizeof(End), kPage);
}

std::shared_ptr<Mailboxes> Mailboxes::create(std::shared_ptr<Communicator> comm, WaitHook& hook) {
  comm->prepare(hook);
  std::shared_ptr<const Parts> parts = comm->keep(comm->parts());
  const int size = comm->size();
  if (size == 1)
    return std::make_shared<Mailboxes>(std::move(parts), nullptr, std::vector<std::int64_t>());
  if (!comm->node_path().serves_all()) return nullptr;
  SetUpCalls mpi_calls(comm->handle(), comm->rank(), size, hook, comm->liveness().names());
  OwnCalls own_calls(*comm, hook);
  Bootstrap& calls = comm->node_only() ? static_cast<Bootstrap&>(own_calls) : mpi_calls;
  const std::size_t ends = bytes_of_ends(size);
  const std::size_t rings = static_cast<std::size_t>(size) * static_cast<std::size_t>(size);
  std::string reason;
  const auto segment =
      Segment::create(calls, Segment::kProofBytes + ends + rings * kRingBytes, reason);
  if (segment != nullptr && comm->rank() == 0) {
    try {
      segment->populate(Segment::kProofBytes, ends);
    } catch (const TransportError& error) {
      reason = error.what();
    }
  }
  throw_if_any(calls, reason, "messages: there is no memory for them",
               "Free memory, or raise the limit.");
  return std::make_shared<Mailboxes>(std::move(parts), segment, readable_processes(calls));
}

Mailboxes::Mailboxes(std::shared_ptr<const Parts> parts, std::shared_ptr<Segment> segment,
                     std::vector<std::int64_t> processes)
    : parts_(std::move(parts)),
      segment_(std::move(segment)),
      processes_(std::move(processes)),
      alone_(segment_ == nullptr
                 ? std::make_unique<End[]>((bytes_of_ends(1) + kRingBytes) / sizeof(End))
                 : nullptr),
      ends_(segment_ == nullptr ? alone_.get()
                                : reinterpret_cast<End*>(segment_->data() + Segment::kProofBytes)),
      bytes_(reinterpret_cast<std::byte*>(ends_) + bytes_of_ends(parts_->member.size)),
      has_memory_(static_cast<std::size_t>(parts_->member.size), segment_ == nullptr),
      sends_(static_cast<std::size_t>(parts_->member.size)),
      reading_(static_cast<std::size_t>(parts_->member.size)) {}

Mailboxes::Ring Mailboxes::ring(int from, int to) const {
  const auto index = static_cast<std::size_t>(from * parts_->member.size + to);
  return {ends_[2 * index], ends_[2 * index + 1], bytes_ + index * kRingBytes};
}

// Allocates the ring to a rank, at the first message to it.
void Mailboxes::require_memory(int to) {
  if (has_memory_[static_cast<std::size_t>(to)]) return;
  const std::byte* const bytes = ring(rank(), to).bytes;
  segment_->populate(static_cast<std::size_t>(bytes - segment_->data()), kRingBytes);
  has_memory_[static_cast<std::size_t>(to)] = true;
}

Mailboxes::Shared Mailboxes::send(const std::byte* data, std::size_t bytes, int to,
                                  std::int64_t tag) {
  require_rank();
  auto operation =
      std::make_shared<MessageOperation>(shared_from_this(), MessageOperation::Way::kSend,
                                         const_cast<std::byte*>(data), bytes, to, tag);
  {
    const std::lock_guard lock(mutex_);
    if (closed_) throw UsageError("a message: its group has been destroyed");
    require_memory(to);
    operation->left_ = bytes;
    sends_[static_cast<std::size_t>(to)].push_back(operation);
  }
  return start(std::move(operation));
}

Mailboxes::Shared Mailboxes::receive(std::byte* data, std::size_t bytes, int from,
                                     std::int64_t tag) {
  require_rank();
  auto operation = std::make_shared<MessageOperation>(
      shared_from_this(), MessageOperation::Way::kReceive, data, bytes, from, tag);
  {
    const std::lock_guard lock(mutex_);
    if (closed_) throw UsageError("a message: its group has been destroyed");
    if (!take_early(operation)) receives_.push_back(operation);
  }
  return start(std::move(operation));
}

Mailboxes::Shared Mailboxes::start(Shared operation) {
  if (!operation->advance()) {
    try {
      let_drive(operation);
    } catch (...) {
      operation->abandon(std::current_exception());
      throw;
    }
  }
  return operation;
}

void Mailboxes::close() noexcept {
  if (is_fork_of_rank()) return;
  std::vector<Shared> left;
  try {
    const std::lock_guard lock(mutex_);
    closed_ = true;
    for (const auto& queue : sends_) left.insert(left.end(), queue.begin(), queue.end());
    left.insert(left.end(), receives_.begin(), receives_.end());
    for (const Reading& one : reading_) {
      if (one.taker != nullptr) left.push_back(one.taker);
    }
    for (const auto& one : early_) {
      if (one->taker != nullptr) left.push_back(one->taker);
    }
  } catch (const std::bad_alloc&) {
    return;  // the operations stay in flight
  }
  const auto reason = std::make_exception_ptr(
      UsageError("a message was in flight when this rank destroyed its group"));
  for (const Shared& operation : left) operation->abandon(reason);
}

// The error that ends the operation, because its peer will send, or receive, no more. A receive
// from any rank ends when all other ranks are lost.
std::exception_ptr Mailboxes::look_for_lost(MessageOperation& operation) const {
  constexpr std::uint64_t kEveryNs = 50'000'000;
  const std::uint64_t now = now_ns();
  if (operation.looked_ns_ == 0) operation.looked_ns_ = now;
  const NodeGroup* const group = parts_->node_path.group();
  if (now - operation.looked_ns_ < kEveryNs || group == nullptr) return nullptr;
  operation.looked_ns_ = now;
  std::exception_ptr lost;
  for (int peer = 0; peer < parts_->member.size; ++peer) {
    const bool is_awaited =
        operation.peer_ == MessageOperation::kAnyone ? peer != rank() : peer == operation.peer_;
    if (!is_awaited) continue;
    try {
      group->check_peer(static_cast<std::size_t>(peer));
      return nullptr;
    } catch (const PeerLost& error) {
      lost =
          std::make_exception_ptr(PeerLost(std::string(error.what()) + " while " +
                                           operation.waiter() + " waits in " + operation.asked()));
    }
  }
  return lost;
}

// ---- under the lock -----------------------------------------------------------------------------

void Mailboxes::move(MessageOperation& operation) {
  if (operation.way_ == MessageOperation::Way::kSend) return push(operation.peer_);
  if (operation.peer_ != MessageOperation::kAnyone) return pull(operation.peer_);
  for (int from = 0; from < parts_->member.size && !operation.is_done_; ++from) pull(from);
}

// nullopt for a receive from any rank, which has several words to look at.
std::optional<Awaited> Mailboxes::awaited(const MessageOperation& operation) const {
  const bool sends = operation.way_ == MessageOperation::Way::kSend;
  const int peer =
      operation.source_ != MessageOperation::kAnyone ? operation.source_ : operation.peer_;
  if (peer == MessageOperation::kAnyone) return std::nullopt;
  const Ring one = sends ? ring(rank(), peer) : ring(peer, rank());
  if (!sends) return Awaited{&one.written.passed, one.read.passed + 1, &one.written.bell, nullptr};
  // The ring had no room for another step when this rank last looked, or the receiver is reading
  // the first message.
  const MessageOperation& first = *sends_[static_cast<std::size_t>(peer)].front();
  const std::uint64_t target =
      first.shown_until_ != 0 ? first.shown_until_ : one.written.passed + kStep - kRingBytes;
  return Awaited{&one.read.passed, target, &one.read.bell, nullptr};
}

void Mailboxes::push(int to) {
  auto& queue = sends_[static_cast<std::size_t>(to)];
  while (!queue.empty() && push_front(to)) {
    queue.front()->is_done_ = true;
    queue.front()->holds_memory_ = false;
    queue.pop_front();
  }
}

bool Mailboxes::is_shown(const MessageOperation& operation) const {
  return operation.bytes_ > kLongMessage && !processes_.empty() &&
         kernel_can_read(operation.data_, operation.bytes_);
}

// Returns whether all of the first message is in the ring, or has been read.
bool Mailboxes::push_front(int to) {
  MessageOperation& first = *sends_[static_cast<std::size_t>(to)].front();
  const Ring one = ring(rank(), to);
  std::uint64_t written = one.written.passed.load(std::memory_order_relaxed);
  const auto room = [&] {
    return kRingBytes - (written - one.read.passed.load(std::memory_order_acquire));
  };
  const auto publish = [&] {
    one.written.passed.store(written, std::memory_order_release);
    ring_for_sleepers(one.written.bell, nullptr);
  };
  bool is_news = false;
  if (!first.has_begun_) {
    if (room() < kStep) return false;
    const bool shown = is_shown(first);
    const Head head{first.bytes_, first.tag_, shown ? first.data_ : nullptr, 0};
    std::memcpy(one.bytes + written % kRingBytes, &head, sizeof head);
    written += kStep;
    first.has_begun_ = is_news = true;
    if (shown) first.shown_until_ = written;
  }
  if (first.shown_until_ != 0) {
    if (is_news) publish();
    return has_reached(one.read.passed, first.shown_until_);
  }
  while (first.left_ > 0) {
    const std::size_t piece = std::min({first.left_, room(), kMessagePiece});
    if (piece == 0) break;
    around(kRingBytes, written, piece, [&](std::size_t at, std::size_t begin, std::size_t count) {
      copy_bytes(one.bytes + at, first.data_ + begin, count);
    });
    first.data_ += piece;
    first.left_ -= piece;
    written += in_steps(piece, kStep);
    publish();
    is_news = false;
  }
  if (is_news) publish();
  return first.left_ == 0;
}

void Mailboxes::pull(int from) {
  const auto& unsent = sends_[static_cast<std::size_t>(from)];
  if (!unsent.empty() && unsent.front()->holds_memory_) push(from);  // no other call advances it
  const Ring one = ring(from, rank());
  Reading& now = reading_[static_cast<std::size_t>(from)];
  while (true) {
    const std::uint64_t written = one.written.passed.load(std::memory_order_acquire);
    if (!now.is_message && !begin_reading(from, written)) return;
    if (now.where != nullptr) {
      if (!read_shown(from)) return;
      continue;
    }
    std::uint64_t read = one.read.passed.load(std::memory_order_relaxed);
    while (now.left > 0 && read != written) {
      const std::size_t piece =
          std::min({now.left, static_cast<std::size_t>(written - read), kMessagePiece});
      if (now.to != nullptr) {
        around(kRingBytes, read, piece, [&](std::size_t at, std::size_t begin, std::size_t count) {
          copy_bytes(now.to + begin, one.bytes + at, count);
        });
        now.to += piece;
      }
      now.left -= piece;
      read += in_steps(piece, kStep);
      pass(from, in_steps(piece, kStep));
    }
    if (now.left == 0) {
      end_reading(from);
    } else if (one.written.passed.load(std::memory_order_acquire) == read) {
      return;
    }
  }
}

// Returns whether there is a message to go on with.
bool Mailboxes::begin_reading(int from, std::uint64_t written) {
  const Ring one = ring(from, rank());
  const std::uint64_t read = one.read.passed.load(std::memory_order_relaxed);
  if (read == written || !is_wanted(from)) return false;
  Head head{};
  std::memcpy(&head, one.bytes + read % kRingBytes, sizeof head);
  Reading begun{.is_message = true, .left = head.bytes, .taker = take_posted(from, head.tag)};
  if (begun.taker != nullptr) {
    begun.taker->take(from, head.bytes);
    if (begun.taker->failure_ == nullptr) begun.to = begun.taker->data_;
  } else {
    begun.early =
        std::make_shared<Early>(Early{from, head.tag, std::vector<std::byte>(head.bytes)});
    begun.to = begun.early->bytes.data();
    early_.push_back(begun.early);
  }
  begun.where = head.where;
  reading_[static_cast<std::size_t>(from)] = std::move(begun);
  if (head.where == nullptr) pass(from, kStep);
  return true;
}

void Mailboxes::pass(int from, std::size_t bytes) {
  End& read = ring(from, rank()).read;
  read.passed.store(read.passed.load(std::memory_order_relaxed) + bytes, std::memory_order_release);
  ring_for_sleepers(read.bell, nullptr);
}

// Reads one piece, so that other threads get the lock. Returns whether that was the last piece.
bool Mailboxes::read_shown(int from) {
  Reading& now = reading_[static_cast<std::size_t>(from)];
  const std::int64_t process = processes_[static_cast<std::size_t>(from)];
  const std::size_t piece = std::min(now.left, kShownPiece);
  const int error = now.to == nullptr ? 0 : read_process(process, now.to, now.where, piece);
  if (error == 0 && now.to != nullptr && piece < now.left) {
    now.to += piece;
    now.where += piece;
    now.left -= piece;
    return false;
  }
  if (error != 0) {
    const auto failure = std::make_exception_ptr(TransportError(
        "a message from " + parts_->liveness.names().of(from) + ": its memory cannot be read (" +
        std::string(std::strerror(error)) + "). See whether that rank has ended"));
    if (now.taker != nullptr) now.taker->failure_ = failure;
    if (now.early != nullptr) now.early->failure = failure;
  }
  now.left = 0;
  pass(from, kStep);
  end_reading(from);
  return true;
}

void Mailboxes::end_reading(int from) {
  const Reading read = std::exchange(reading_[static_cast<std::size_t>(from)], {});
  if (read.taker != nullptr) read.taker->is_done_ = true;
  if (read.early == nullptr) return;
  read.early->is_complete = true;
  if (read.early->taker != nullptr) hand_over(read.early);
}

// Returns whether the message has come, or is arriving.
bool Mailboxes::take_early(const Shared& operation) {
  const auto found = std::ranges::find_if(early_, [&](const auto& one) {
    return one->taker == nullptr && one->tag == operation->tag_ &&
           (operation->peer_ == MessageOperation::kAnyone || one->source == operation->peer_);
  });
  if (found == early_.end()) return false;
  const std::shared_ptr<Early> early = *found;
  operation->take(early->source, early->bytes.size());
  early->taker = operation;
  if (early->is_complete) hand_over(early);
  return true;
}

void Mailboxes::hand_over(const std::shared_ptr<Early>& early) {
  MessageOperation& taker = *early->taker;
  if (early->failure != nullptr) taker.failure_ = early->failure;
  if (taker.failure_ == nullptr) std::ranges::copy(early->bytes, taker.data_);
  taker.is_done_ = true;
  std::erase(early_, early);
}

Mailboxes::Shared Mailboxes::take_posted(int from, std::int64_t tag) {
  const auto found = std::ranges::find_if(receives_, [&](const Shared& one) {
    return one->tag_ == tag && (one->peer_ == from || one->peer_ == MessageOperation::kAnyone);
  });
  if (found == receives_.end()) return nullptr;
  Shared taken = std::move(*found);
  receives_.erase(found);
  return taken;
}

// A message that no receive waits for stays in the ring, so that a rank that sends too much waits.
bool Mailboxes::is_wanted(int from) const {
  return std::ranges::any_of(receives_, [&](const Shared& one) {
    return one->peer_ == from || one->peer_ == MessageOperation::kAnyone;
  });
}

// The operation's memory is the caller's again, except for a sent message whose head is in the
// ring. The receiver may be reading that message, and the messages behind it need its end.
void Mailboxes::give_up(MessageOperation& operation) noexcept {
  const std::lock_guard lock(mutex_);
  const auto is_it = [&](const Shared& one) { return one.get() == &operation; };
  if (operation.way_ == MessageOperation::Way::kSend) {
    auto& queue = sends_[static_cast<std::size_t>(operation.peer_)];
    if (!operation.has_begun_) {
      std::erase_if(queue, is_it);
    } else if (!operation.is_done_) {
      operation.holds_memory_ = true;
    }
    return;
  }
  std::erase_if(receives_, is_it);
  for (Reading& one : reading_) {
    if (one.taker.get() != &operation) continue;
    one.taker = nullptr;
    one.to = nullptr;
  }
  for (const auto& one : early_) {
    if (one->taker.get() != &operation) continue;
    one->taker = take_posted(one->source, one->tag);
    if (one->taker != nullptr) one->taker->take(one->source, one->bytes.size());
  }
}

}  // namespace gradred
