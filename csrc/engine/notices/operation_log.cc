#include "engine/notices/operation_log.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>

#include "base/errors.h"
#include "base/fresh_number.h"
#include "base/text.h"

namespace gradred {

// A message about an operation, on the operation log's tag.
struct OperationLog::Notice {
  enum class Kind : std::uint64_t { kLeft, kWaiting, kDiffers, kFailed };

  Kind kind = Kind::kLeft;
  std::uint64_t nonce = 0;  // of the rank that waits
  std::uint64_t number = 0;
  std::int64_t rank = 0;                  // of the sender
  Signature signature{};                  // of the sender's call; for kWaiting and kDiffers
  Failure failure = Failure::kTransport;  // for kFailed
  char reason[768] = {};                  // for kLeft and kFailed
};

struct OperationLog::Sending {  // a notice in flight
  Notice notice;
  std::vector<mpi::Handle> requests;
};

struct OperationLog::Arriving {
  Notice notice;
  mpi::Handle request = 0;
};

struct OperationLog::Dropped {  // a message of a refused operation, received to be dropped
  std::vector<std::byte> memory;
  mpi::Handle request = 0;
};

struct OperationLog::Refused {
  std::string reason;
  bool left_here = false;  // this rank has left, and has notified all peers
  std::set<int> left;      // the peers that have left
  std::list<Dropped> dropped;
};

OperationLog::OperationLog() : nonce_(fresh_number()) {
  static_assert(sizeof(Notice) <= kLargestNotice);
}
// Memory that the MPI may still read or write is never reused.
OperationLog::~OperationLog() {
  static_cast<void>(arriving_.release());
  if (!sending_.empty()) static_cast<void>(new std::list<Sending>(std::move(sending_)));
  for (auto& [number, refused] : refused_) {
    if (refused.dropped.empty()) continue;
    static_cast<void>(new std::list<Dropped>(std::move(refused.dropped)));
  }
}

void OperationLog::open(const MpiTransport& transport, std::shared_ptr<NoticeCount> notices) {
  const std::lock_guard lock(mutex_);
  transport_ = &transport;
  notices_ = std::move(notices);
  window_ = transport.tags().window();
  check(window_ <= OperationNumbers::kMost, "more tags than operations that are kept track of");
  open_.store(true, std::memory_order_release);
}

// Publishes the state for the other threads, before the thread that has changed it releases the
// lock.
void OperationLog::note_state() {
  refuses_ = !refused_.empty();
  has_notices_ = !waiting_.empty() || !differing_.empty();
  busy_ = refuses_ || has_notices_ || !sending_.empty() || arriving_ != nullptr;
}

bool OperationLog::may_start(std::uint64_t number) const {
  if (!open_.load(std::memory_order_acquire)) return false;
  std::uint64_t oldest = numbers_.oldest();
  if (refuses_) {
    const std::lock_guard lock(mutex_);
    if (!refused_.empty()) oldest = std::min(oldest, refused_.begin()->first);
  }
  return number - oldest < window_;
}

void OperationLog::leave(std::uint64_t number, std::string_view reason) {
  const std::lock_guard lock(mutex_);
  Refused& refused = refused_[number];
  if (refused.reason.empty()) refused.reason = reason;
  note_state();
  numbers_.end(number);
}

std::optional<std::string> OperationLog::refusal(std::uint64_t number) const {
  if (!refuses_) return std::nullopt;
  const std::lock_guard lock(mutex_);
  const auto found = refused_.find(number);
  return found != refused_.end() ? std::optional(found->second.reason) : std::nullopt;
}

bool OperationLog::settled(std::uint64_t number) {
  const std::lock_guard lock(mutex_);
  return !refused_.contains(number);
}

void OperationLog::tell_waiting(std::uint64_t number, const Signature& signature) {
  const std::lock_guard lock(mutex_);
  tell_all({Notice::Kind::kWaiting, nonce_, number, 0, signature});
  note_state();
}

void OperationLog::answer(std::uint64_t number, const Signature& signature) {
  if (!has_notices_) return;
  const std::lock_guard lock(mutex_);
  const auto found = waiting_.find(number);
  if (found == waiting_.end()) return;
  for (auto& [peer, asking] : found->second) {
    if (asking.answered || asking.signature == signature) continue;
    asking.answered = true;
    tell(sending_.emplace_back(Sending{
             {Notice::Kind::kDiffers, asking.nonce, number, transport_->rank(), signature}, {}}),
         peer);
  }
  note_state();
}

std::vector<int> OperationLog::waiting(std::uint64_t number) const {
  const std::lock_guard lock(mutex_);
  std::vector<int> peers;
  if (const auto found = waiting_.find(number); found != waiting_.end()) {
    for (const auto& [peer, asking] : found->second) peers.push_back(peer);
  }
  if (const auto found = refused_.find(number); found != refused_.end()) {
    for (const int peer : found->second.left) {
      if (std::ranges::find(peers, peer) == peers.end()) peers.push_back(peer);
    }
  }
  return peers;
}

void OperationLog::fail(const FailureReport& report, const std::vector<int>& failed) {
  const std::lock_guard lock(mutex_);
  if (failure_) return;
  keep_failure(report);
  if (transport_ == nullptr) return;
  Notice notice{.kind = Notice::Kind::kFailed, .failure = report.kind};
  set_text(notice.reason, report.text);
  tell_all(notice, failed);
  note_state();
}

void OperationLog::note_failure(const FailureReport& report) {
  const std::lock_guard lock(mutex_);
  keep_failure(report);
}

// The first failure is kept.
void OperationLog::keep_failure(const FailureReport& report) {
  if (failure_) return;
  failure_ = report;
  has_failed_.store(true, std::memory_order_release);
}

std::optional<FailureReport> OperationLog::failure() const {
  if (!has_failed()) return std::nullopt;
  const std::lock_guard lock(mutex_);
  return failure_;
}

std::optional<SignatureMismatch> OperationLog::disagreement(std::uint64_t number,
                                                            const Signature& signature) {
  if (!has_notices_) return std::nullopt;
  const std::lock_guard lock(mutex_);
  const auto found = differing_.find(number);
  if (found == differing_.end()) return std::nullopt;
  const auto& [peer, theirs] = found->second;
  return SignatureMismatch({transport_->rank(), peer}, signature, theirs);
}

bool OperationLog::progress() {
  int sender = 0;
  if (!open_.load(std::memory_order_acquire)) return !refuses_;
  if (!busy_ && !notice_is_there(sender)) return true;
  const std::lock_guard lock(mutex_);
  receive_notices();
  clear_away();
  forget_sent();
  forget_ended();
  note_state();
  return refused_.empty();
}

void OperationLog::clear_away() {
  for (auto entry = refused_.begin(); entry != refused_.end();) {
    auto& [number, refused] = *entry;
    const bool first = !refused.left_here && numbers_.has_ended(number);
    if (first) {
      Notice notice{.kind = Notice::Kind::kLeft, .number = number};
      set_text(notice.reason, refused.reason);
      tell_all(notice);
      refused.left_here = true;
    }
    const auto peers = static_cast<std::size_t>(transport_->size() - 1);
    const bool all_left = refused.left.size() == peers;  // before the look for what they had sent
    const bool gone = refused.left_here && drop_messages(number, refused) && all_left;
    entry = gone ? refused_.erase(entry) : std::next(entry);
  }
}

void OperationLog::tell_all(const Notice& notice, const std::vector<int>& but) {
  Sending& sending = sending_.emplace_back(Sending{notice, {}});
  sending.notice.rank = transport_->rank();
  for (int peer = 0; peer < transport_->size(); ++peer) {
    if (peer == transport_->rank() || std::ranges::find(but, peer) != but.end()) continue;
    tell(sending, peer);
  }
}

void OperationLog::tell(Sending& sending, int peer) {
  const mpi::Mpi& mpi = mpi::get();
  mpi.check(mpi.call.Isend(&sending.notice, sizeof(Notice), mpi.is.byte_type, peer,
                           transport_->tags().notices(), transport_->comm(),
                           &sending.requests.emplace_back(0)),
            "telling a peer about an operation");
  notices_->count_sent(peer);
}

// A notice may be in flight when its sender is lost, so nothing here may wait for it.
void OperationLog::receive_notices() {
  const mpi::Mpi& mpi = mpi::get();
  while (arriving_ || find_notice()) {
    int done = 0;
    mpi.check(mpi.call.Test(&arriving_->request, &done, mpi.is.status_ignore), "hearing of a peer");
    if (done == 0) return;
    const Notice notice = arriving_->notice;
    arriving_.reset();
    receive(notice);
  }
}

// Receives from the sender that the probe has found. MPICH 5 may lose track of a notice that is
// received from any source, if some ranks share memory and others do not.
bool OperationLog::find_notice() {
  const mpi::Mpi& mpi = mpi::get();
  int sender = 0;
  if (!notice_is_there(sender)) return false;
  arriving_ = std::make_unique<Arriving>();
  mpi.check(mpi.call.Irecv(&arriving_->notice, sizeof(Notice), mpi.is.byte_type, sender,
                           transport_->tags().notices(), transport_->comm(), &arriving_->request),
            "hearing of a peer");
  notices_->count_received();
  return true;
}

// Needs no lock.
bool OperationLog::notice_is_there(int& sender) const {
  const mpi::Mpi& mpi = mpi::get();
  alignas(16) std::array<std::byte, 64> status{};  // no MPI family has a larger status
  int there = 0;
  mpi.check(mpi.call.Iprobe(mpi.is.any_source, transport_->tags().notices(), transport_->comm(),
                            &there, status.data()),
            "MPI_Iprobe");
  if (there != 0) std::memcpy(&sender, status.data() + mpi.is.status_source, sizeof sender);
  return there != 0;
}

void OperationLog::receive(const Notice& notice) {
  const int peer = static_cast<int>(notice.rank);
  if (notice.kind == Notice::Kind::kWaiting) {
    if (!numbers_.has_ended(notice.number)) {
      waiting_[notice.number][peer] = {notice.signature, notice.nonce, false};
    }
    return;
  }
  if (notice.kind == Notice::Kind::kDiffers) {
    if (notice.nonce == nonce_ && !numbers_.has_ended(notice.number)) {
      differing_[notice.number] = {peer, notice.signature};
    }
    return;
  }
  if (notice.kind == Notice::Kind::kFailed) {
    keep_failure({notice.failure, notice.reason});
    return;
  }
  Refused& refused = refused_[notice.number];
  if (refused.reason.empty()) refused.reason = notice.reason;
  refused.left.insert(peer);
}

// Returns true if no message of the operation is there, and none is being received.
bool OperationLog::drop_messages(std::uint64_t number, Refused& refused) {
  const mpi::Mpi& mpi = mpi::get();
  const TagSpace& tags = transport_->tags();
  bool found_any = false;
  for (int peer = 0; peer < transport_->size(); ++peer) {
    for (unsigned slice = 0; slice < tags.most_slices(); ++slice) {
      if (peer == transport_->rank()) continue;
      alignas(16) std::array<std::byte, 64> status{};  // no MPI family has a larger status
      int there = 0, bytes = 0;
      const int tag = tags.tag(number) + static_cast<int>(slice);
      mpi.check(mpi.call.Iprobe(peer, tag, transport_->comm(), &there, status.data()),
                "MPI_Iprobe");
      if (there == 0) continue;
      found_any = true;
      mpi.check(mpi.call.Get_count(status.data(), mpi.is.byte_type, &bytes), "MPI_Get_count");
      Dropped& dropped = refused.dropped.emplace_back();
      dropped.memory.resize(static_cast<std::size_t>(bytes));
      mpi.check(mpi.call.Irecv(dropped.memory.data(), bytes, mpi.is.byte_type, peer, tag,
                               transport_->comm(), &dropped.request),
                "receiving what is dropped");
    }
  }
  refused.dropped.remove_if([&](Dropped& dropped) {
    int done = 0;
    mpi.check(mpi.call.Test(&dropped.request, &done, mpi.is.status_ignore), "MPI_Test");
    return done != 0;
  });
  return !found_any && refused.dropped.empty();
}

void OperationLog::forget_ended() {
  const auto ended = [this](const auto& entry) { return numbers_.has_ended(entry.first); };
  std::erase_if(waiting_, ended);
  std::erase_if(differing_, ended);
}

void OperationLog::forget_sent() {
  const mpi::Mpi& mpi = mpi::get();
  for (auto sending = sending_.begin(); sending != sending_.end();) {
    bool all_sent = true;
    for (mpi::Handle& request : sending->requests) {
      int done = 0;  // Test reports a completed request, which is null, as done
      mpi.check(mpi.call.Test(&request, &done, mpi.is.status_ignore), "MPI_Test");
      all_sent &= done != 0;
    }
    sending = all_sent ? sending_.erase(sending) : std::next(sending);
  }
}

}  // namespace gradred
