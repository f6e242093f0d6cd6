// The operations of one communicator over messages: their numbers, and the notices that peers send
// about them beside the data.
//
// An operation that a rank refuses, for its arguments or because a peer's signature differs, must
// fail on every rank and leave no message behind that a later one could match. So the rank sends
// all others a notice, on a tag of the log's own. Each of them leaves the operation too, and sends
// one notice of that. Messages between two ranks arrive in order: when a peer's notice has come,
// everything that it ever sent for this operation can be found, and is received and dropped. Then
// the tags of the operation are free again. (MPI promises the order for one tag only. MPIs keep it
// for all tags of a communicator unless they spread them over several network contexts.)
//
// Ranks may wait for messages that no rank sends, for example because they use different plans.
// They learn this from notices too: a rank that has waited for a while sends the others what it
// waits for, and those that wait for something else answer. A notice that comes too late for its
// operation may stay unread and reach another communicator with the same tags on this duplicate. So
// the answer repeats a random number of the rank that asked. No notice stays unread when the
// duplicate is freed (closing.h).
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
#include "base/signature_mismatch.h"
#include "engine/notices/closing.h"
#include "engine/notices/numbers.h"
#include "transport/mpi_transport.h"

namespace gradred {

class OperationLog {
 public:
  OperationLog();
  ~OperationLog();
  OperationLog(const OperationLog&) = delete;
  OperationLog& operator=(const OperationLog&) = delete;

  // Called once, when messages can be sent. The caller keeps the transport alive as long as the
  // log. `notices` counts the log's notices. Before this call numbers are given, but no operation
  // may start.
  void open(const MpiTransport& transport, std::shared_ptr<NoticeCount> notices);

  // The number of this rank's next operation. Local; all ranks count alike.
  std::uint64_t begin() { return numbers_.begin(); }
  std::uint64_t begun() const { return numbers_.begun(); }  // how many there were
  // Whether the tags of the operation are free.
  bool may_start(std::uint64_t number) const;
  void end(std::uint64_t number) { numbers_.end(number); }  // ended well on this rank
  // This rank leaves an operation without its result, and sends the peers the reason. Returns at
  // once. Afterwards progress() must be called until it returns true.
  void leave(std::uint64_t number, std::string_view reason);
  // Why this operation cannot end well, if a rank has refused it.
  std::optional<std::string> refusal(std::uint64_t number) const;
  // Whether nothing is left of an operation that this rank has left.
  bool settled(std::uint64_t number);
  // Sends all peers what this rank waits for.
  void tell_waiting(std::uint64_t number, const Signature& signature);
  // Answers peers that wait in this operation with another signature.
  void answer(std::uint64_t number, const Signature& signature);
  // The error if such an answer has come.
  std::optional<SignatureMismatch> disagreement(std::uint64_t number, const Signature& signature);

  // The peers that have sent notices that they wait in this operation, or have left it.
  std::vector<int> waiting(std::uint64_t number) const;
  // The communicator can no longer be used, here and on all peers. The peers are notified, except
  // for those in `failed`.
  void fail(const FailureReport& report, const std::vector<int>& failed);
  // As fail(), for a failure that the peers know already: notifies nobody.
  void note_failure(const FailureReport& report);
  std::optional<FailureReport> failure() const;
  bool has_failed() const { return has_failed_.load(std::memory_order_acquire); }

  // Receives notices of peers, and clears away what is left of refused operations. Never blocks.
  // Returns true if there is nothing to clear away.
  bool progress();
  bool quiet() const { return !refuses_; }  // nothing to clear away

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
  void receive_notices();
  bool notice_is_there(int& sender) const;
  bool find_notice();
  void keep_failure(const FailureReport& report);
  void receive(const Notice& notice);
  bool drop_messages(std::uint64_t number, Refused& refused);
  void forget_sent();
  void forget_ended();
  void note_state();
  void clear_away();

  // Read without the lock, since all operations ask, and hardly any has to do with the rest.
  OperationNumbers numbers_;
  std::atomic<bool> open_{false};
  std::atomic<bool> refuses_{false};      // refused_ is not empty
  std::atomic<bool> has_notices_{false};  // waiting_ or differing_ is not empty
  std::atomic<bool> busy_{false};         // any of these, or sending_ or arriving_ is not empty

  mutable std::mutex mutex_;  // guards what follows
  std::optional<FailureReport> failure_;
  std::atomic<bool> has_failed_{false};      // failure_ is set
  const MpiTransport* transport_ = nullptr;  // read without the lock once open_ is set
  std::uint64_t window_ = 0;                 // likewise
  std::shared_ptr<NoticeCount> notices_;
  const std::uint64_t nonce_;
  std::map<std::uint64_t, Refused> refused_;
  std::map<std::uint64_t, std::map<int, Asking>> waiting_;  // peers that wait, by operation
  // A peer that differs, by operation.
  std::map<std::uint64_t, std::pair<int, Signature>> differing_;
  std::list<Sending> sending_;
  std::unique_ptr<Arriving> arriving_;  // a notice that is being received
};

}  // namespace gradred
