// The operations of one communicator on the schedule path: their numbers, and what peers say about
// them beside the data.
//
// An operation that a rank refuses, for its arguments or because a peer's signature differs, must
// fail on every rank and leave no message behind that a later one could match. So the rank tells
// all others, on a tag of the log's own; each of them leaves the operation too, and says so
// once. Messages between two ranks arrive in order: when a peer has said that it left, everything
// it ever sent for this operation can be found, and is received and dropped. Then the tags of the
// operation are free again. (MPI promises the order for one tag only; the MPIs keep it for all of a
// communicator unless they spread that over several network contexts.)
//
// Ranks that wait for messages which nobody sends (they use different plans, say) learn it from
// notices too: who has waited for a while tells the others what for, and those who wait for
// something else answer. A notice that comes too late for its operation may stay unread and reach
// another communicator with the same tags on this duplicate, so the answer repeats a random number
// of the asker's. None stays unread when the duplicate is freed (closing.h).
#pragma once

#include <atomic>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/failure.h"
#include "base/signature.h"
#include "comm/closing.h"
#include "comm/numbers.h"
#include "transport/mpi.h"

namespace gradred {

class OperationLog {
 public:
  OperationLog();
  ~OperationLog();
  OperationLog(const OperationLog&) = delete;
  OperationLog& operator=(const OperationLog&) = delete;

  // Once, when messages can be sent; the transport must outlive the operation log, which counts its
  // notices. Before that numbers are given, but nothing may start.
  void open(const MpiTransport& transport, std::shared_ptr<NoticeCount> notices);

  // The number of this rank's next operation. Local; all ranks count alike.
  std::uint64_t begin() { return numbers_.begin(); }
  std::uint64_t begun() const { return numbers_.begun(); }  // how many there were
  // Whether the tags of the operation are free.
  bool may_start(std::uint64_t number) const;
  void end(std::uint64_t number) { numbers_.end(number); }  // it ended well here
  // This rank leaves an operation without its result: peers are told, with the reason. Returns at
  // once; afterwards progress() must be called until it says that nothing is left to do.
  void leave(std::uint64_t number, std::string_view reason);
  // Why this operation cannot end well, as a peer says.
  std::optional<std::string> refusal(std::uint64_t number) const;
  // Whether nothing is left of an operation that this rank has left.
  bool settled(std::uint64_t number);
  // Tells all peers what this rank waits for.
  void tell_waiting(std::uint64_t number, const Signature& signature);
  // Answers peers that wait in this operation with another signature.
  void answer(std::uint64_t number, const Signature& signature);
  // What such an answer says.
  std::optional<std::string> disagreement(std::uint64_t number, const Signature& signature);

  // Who has said that it waits in this operation.
  std::vector<int> waiting(std::uint64_t number) const;
  // The communicator can no longer be used, here and on all peers, which are told, but for those
  // that have failed themselves.
  void fail(const FailureReport& report, const std::vector<int>& failed);
  // The same where the peers know it already.
  void note_failure(const FailureReport& report);
  std::optional<FailureReport> failure() const;
  bool has_failed() const { return has_failed_.load(std::memory_order_acquire); }

  // Hears what peers say and clears away what is left of refused operations. Never blocks. True
  // when there is nothing to clear away.
  bool progress();
  bool quiet() const { return !refuses_; }  // there is nothing

 private:
  struct Notice;
  struct Sending;
  struct Arriving;
  struct Dropped;
  struct Refused;
  struct Asking {
    Signature signature;
    std::uint64_t nonce;
    bool answered = false;
  };

  void tell_all(const Notice& notice, const std::vector<int>& but = {});
  void tell(Sending& sending, int peer);
  void hear();
  bool notice_is_there(int& sender) const;
  bool find_notice();
  void keep_failure(const FailureReport& report);
  void receive(const Notice& notice);
  bool drop_messages(std::uint64_t number, Refused& refused);
  void forget_sent();
  void forget_ended();
  void note_state();
  void clear_away();

  // Without the lock, since all operations ask, and hardly any has to do with the rest.
  OperationNumbers numbers_;
  std::atomic<bool> open_{false};
  std::atomic<bool> refuses_{false};  // refused_ is not empty
  std::atomic<bool> told_{false};     // waiting_ or differing_
  std::atomic<bool> busy_{false};     // any of these, sending_ or arriving_

  mutable std::mutex mutex_;  // of what follows
  std::optional<FailureReport> failure_;
  std::atomic<bool> has_failed_{false};      // failure_ is there
  const MpiTransport* transport_ = nullptr;  // read without the lock once open_ is set
  std::uint64_t window_ = 0;                 // likewise
  std::shared_ptr<NoticeCount> notices_;
  const std::uint64_t nonce_;
  std::map<std::uint64_t, Refused> refused_;
  std::map<std::uint64_t, std::map<int, Asking>> waiting_;        // peers, by operation
  std::map<std::uint64_t, std::pair<int, Signature>> differing_;  // a peer, by operation
  std::list<Sending> sending_;
  std::unique_ptr<Arriving> arriving_;  // a notice that is being received
};

}  // namespace gradred
