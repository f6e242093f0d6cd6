// Operations that ranks submit by name, in any order, and that all ranks carry out in one order.
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
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "base/free_blocks.h"
#include "comm/communicator.h"
#include "named/board.h"
#include "named/kept_vectors.h"
#include "named/named_operation.h"
#include "named/relay.h"
#include "named/timeline.h"
#include "node/memory/segment.h"

namespace gradred {

class MemoryInFlight;
class NamedWork;
struct NamedPart;

// The named operations of one communicator, which is used for nothing else. Any thread may submit
// and wait.
class NamedOperations : public std::enable_shared_from_this<NamedOperations> {
 public:
  // Blocking and collective. Throws TransportError if memory is short, or if a host cannot reach
  // rank 0's host by TCP. Throws UsageError if the ranks do not all share memory and their MPI does
  // not accept calls from any thread. All ranks throw alike.
  static std::shared_ptr<NamedOperations> create(std::shared_ptr<Communicator> comm,
                                                 std::uint64_t most_fused_bytes, WaitHook& hook);
  // `host_group`: the host group, that is, the ranks that share `segment`, this rank among them.
  NamedOperations(std::shared_ptr<Communicator> comm, std::shared_ptr<Segment> segment,
                  const std::vector<int>& host_group, std::uint64_t most_fused_bytes);
  ~NamedOperations();

  // Sets the title that messages use, such as "process set 1". Call it before anything is
  // submitted.
  void be_called(std::string title) { title_ = std::move(title); }
  const std::string& title() const { return title_; }
  // From now on devices are given the work of an operation at once where that is possible, and
  // streams of the program may wait for it.
  void let_streams_wait() { streams_wait_ = true; }

  int rank() const { return comm_->rank(); }
  int size() const { return comm_->size(); }
  Communicator& comm() const { return *comm_; }
  bool needs_no_mpi() const { return comm_->node_path().serves_all() || comm_->size() == 1; }

  // Local. Throws UsageError for arguments that no rank could carry out, and if an operation of
  // this name is in flight; throws Error once a rank has left. The caller keeps the memory of
  // `arrays` valid until the operation has ended.
  std::shared_ptr<NamedOperation> submit(std::string name, const Submission& what,
                                         std::vector<NamedArray> arrays,
                                         std::vector<std::int64_t> splits, NamedTexts texts = {});
  // Submits that this rank has refused its arguments for an operation of this name, which ends with
  // an error on its peers. Does not wait for them. No effect while the name is in flight, after
  // this rank has joined, and once a rank has left.
  void refuse(std::string name, std::string why) noexcept;
  // Submits that this rank has no more arrays of its own; see Board::join().
  std::shared_ptr<NamedOperation> join();
  // From now on writes events to `timeline`, until the next call; nullptr stops it. `prefix` is put
  // before all names.
  void write_to(std::shared_ptr<Timeline> timeline, std::string prefix);
  // This rank leaves. Operations that the ranks have not agreed on end with an error on all ranks.
  // Does not wait for them.
  void close() noexcept;
  // Throws PeerLost if another rank's process has ended. For callers that wait for something else;
  // `where` names that in the error.
  void look_for_lost(std::string_view where) const;

  // Advances everything in flight as far as possible. Called by a NamedOperation that is waited
  // for, and by the progress thread if none is. `except`: the operation whose advance() calls this.
  Progress drive(Operation::Caller caller, const Operation* except);
  // Called when the caller gives up waiting for `operation` because of `reason`. Takes it back if
  // not all ranks have submitted it; else all operations fail.
  void forget(NamedOperation& operation, const std::exception_ptr& reason) noexcept;
  std::string missing(const NamedOperation& operation);
  std::string own_name() const { return comm_->liveness().own_name(); }
  // For the progress thread: whether nothing is in flight, so that it need not call drive().
  bool rests();

 private:
  using Shared = std::shared_ptr<NamedOperation>;

  void submit(const Shared& operation);
  bool add_memory(NamedOperation& operation);
  void release(NamedOperation& operation);
  void expect_entry_of(const Shared& operation);
  void go_on(bool waits);
  void look_after_peers();
  void look_for_peers() const;
  bool must_watch() const;
  bool waits_for_ranks();
  void publish_backlog();
  bool wants_work() const;
  bool take_entries();
  void add_work(NamedPart part, bool joins);
  void end_what_is_left_over();
  void run_works();
  void publish_given();
  void advance_behind_given();
  void start_works();
  bool waits_for_memory(const NamedWork& work) const;
  Progress where(bool waits);
  void log_results(NamedOperation& operation) const;
  void finish(const Shared& operation, std::exception_ptr failure);
  void fail(const std::exception_ptr& reason) noexcept;
  std::exception_ptr loss(const std::string& text) const;
  void leave(const std::string& how, std::optional<Failure> failure = std::nullopt) noexcept;
  void note_failure(const FailureReport& report);
  bool advance_finished(const Operation* except);
  void tell_timeline(const NamedOperation& operation, const std::exception_ptr& failure) const;

  struct alignas(64) Line {
    std::byte bytes[64];
  };

  const std::shared_ptr<Communicator> comm_;
  ResultLog* const result_log_;  // nullptr: results are not logged
  std::string title_;
  std::atomic<bool> streams_wait_{false};
  const std::shared_ptr<Segment> segment_;  // nullptr: no other rank shares memory with this one
  const std::unique_ptr<Line[]> alone_;     // memory of the board in that case
  mutable std::mutex intake_;               // protects the members up to driving_; held for moments
  Board board_;
  std::unordered_map<Board::Place, Shared, std::hash<Board::Place>, std::equal_to<>,
                     PoolAllocator<std::pair<const Board::Place, Shared>>>
      // Operations that this rank has submitted, by slot, until their last entry is taken.
      agreed_on_;
  std::deque<Shared> backlog_;  // operations for which the board had no room
  MemoryInFlight& memory_;
  std::deque<Shared> held_;              // operations whose memory one of another communicator uses
  std::atomic<std::size_t> sharing_{0};  // operations in flight that share memory with others
  bool join_waits_ = false;              // join() is called once the backlog is empty
  // Whether the three may have something to do. Any thread may read it, as the next one.
  std::atomic<bool> any_postponed_{false};
  std::unordered_set<std::string_view, std::hash<std::string_view>, std::equal_to<>,
                     PoolAllocator<std::string_view>>
      keys_;  // names of the operations in flight
  // Operations with a result or an error that have not been ended yet.
  std::vector<Shared> finished_;
  std::atomic<bool> any_finished_{false};  // finished_ has some
  Shared joining_;
  std::atomic<std::size_t> in_flight_{0};
  bool driven_ = false;  // the progress thread has a Pump for this object
  std::exception_ptr failure_;
  std::shared_ptr<Timeline> timeline_;
  std::string timeline_prefix_;

  std::mutex driving_;  // protects the members up to noted_mutex_; taken before intake_
  KeptVectors kept_vectors_;
  const Operation* caller_advances_ = nullptr;  // drive()'s `except`, which ends itself
  std::deque<std::unique_ptr<NamedWork>> works_;
  std::vector<Board::Entry> entries_;  // entries just taken from the board
  std::uint64_t under_way_ = 0;        // bytes of works_
  std::atomic<bool> closed_{false};
  Progress stopped_{};
  std::uint64_t looked_ns_ = 0;
  // When something was last submitted, or received from another host group.
  std::atomic<std::uint64_t> busy_ns_{0};

  std::mutex noted_mutex_;
  std::optional<FailureReport> noted_;  // the failure that ended operations in another host group

  std::unique_ptr<Relay> relay_;  // set on the first rank of each host group, if there are several
};

}  // namespace gradred
