// Operations that ranks submit by name, in any order, and carry out in one order on all.
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

#include "base/pool.h"
#include "comm/communicator.h"
#include "comm/started.h"
#include "coordinator/board.h"
#include "coordinator/kept_vectors.h"
#include "coordinator/relay.h"
#include "coordinator/submission.h"
#include "coordinator/timeline.h"
#include "node/segment.h"

namespace gradred {

class NamedOperations;
class NamedWork;
struct NamedPart;

struct NamedArray {
  InBuffer in{.data = nullptr};
  OutBuffer out{};  // of the same address: in place; of none: host memory is made for the result
  // Of a result that is not as long as the input: how long it has to be to go to `out`; of another
  // length it gets memory of its own.
  std::size_t out_bytes = 0;
  DType dtype = DType::kUInt8;
  std::size_t count = 0;
  std::int64_t rows = 0;   // along the first axis
  bool on_device = false;  // also where it has no elements
  After after{};
  bool filled = false;  // the result went to `out`, and not to memory of its own

  std::size_t bytes() const { return count * size_of(dtype); }
  DeviceMemory* device() const {
    return in.memory.is_host() ? out.memory.device() : in.memory.device();
  }
  std::size_t row_bytes() const { return rows == 0 ? 0 : bytes() / static_cast<std::size_t>(rows); }
};

// A result for which memory was made.
struct NamedOutput {
  std::shared_ptr<std::byte[]> memory;
  std::size_t bytes = 0;
};

// What was submitted under one name, in flight.
class NamedOperation final : public StartedOperation {
 public:
  NamedOperation(std::shared_ptr<NamedOperations> all, std::string key, Submission submission,
                 std::vector<NamedArray> arrays, std::vector<std::int64_t> splits,
                 std::string why_refused = {})
      : key_(std::move(key)),
        submission_(submission),
        arrays_(std::move(arrays)),
        splits_(std::move(splits)),
        why_refused_(std::move(why_refused)),
        all_(std::move(all)) {}

  const std::string& key() const { return key_; }  // its name
  std::string quoted() const;                      // with the title of all, if they have one
  const Submission& submission() const { return submission_; }
  std::vector<NamedArray>& arrays() { return arrays_; }
  const std::vector<std::int64_t>& splits() const { return splits_; }  // of an alltoall: rows
  // Where a result of so many bytes goes: to memory of the caller's that has this length, and
  // shares none with the input, unless that lies at `input_at` of it.
  OutBuffer make_output(std::size_t array, std::size_t bytes, std::size_t input_at = kNowhere);
  static constexpr std::size_t kNowhere = ~std::size_t{0};

  // After it has ended well. By array, what memory was made for; by array and rank, the rows.
  std::vector<NamedOutput> outputs;
  std::vector<std::vector<std::int64_t>> rows;
  int last_joined = -1;

  std::string waiter() const override;
  std::string waits_for() const override;
  bool needs_no_mpi() const override;
  bool spins() const override;
  std::size_t bytes() const override { return submission_.bytes; }
  // After it has ended badly: a device may still use the arrays.
  bool holds_memory() const override { return holds_memory_; }

 protected:
  bool step() override;
  void give_up(const std::exception_ptr& reason) noexcept override;
  void withdraw() noexcept override {}

 private:
  friend class NamedOperations;

  const std::string key_;
  Submission submission_;  // once it is agreed on, priority and chunks as on all ranks
  std::vector<NamedArray> arrays_;
  const std::vector<std::int64_t> splits_;
  const std::string why_refused_;  // of a refusal, for the other ranks
  const std::shared_ptr<NamedOperations> all_;
  std::optional<Board::Place> place_;  // under NamedOperations' intake_; none: there was no room
  NamedTimes times_;                   // where a timeline is written
  std::exception_ptr failed_with_;
  bool holds_memory_ = false;          // as failed_with_: before finished_
  std::atomic<bool> finished_{false};  // it has a result, or failed_with_
};

// Of one communicator, which serves nothing else. Any thread may submit and wait.
class NamedOperations : public std::enable_shared_from_this<NamedOperations> {
 public:
  // Blocking and collective. Throws TransportError where there is too little memory, or ranks that
  // share none cannot reach rank 0's host, and UsageError where such ranks' MPI does not take calls
  // from any thread; then on all ranks.
  static std::shared_ptr<NamedOperations> create(std::shared_ptr<Communicator> comm,
                                                 std::uint64_t most_fused_bytes, WaitHook& hook);
  // `site`: the ranks that share `segment`, this one among them.
  NamedOperations(std::shared_ptr<Communicator> comm, std::shared_ptr<Segment> segment,
                  const std::vector<int>& site, std::uint64_t most_fused_bytes);
  ~NamedOperations();

  // Of several, for messages: "process set 1". Before anything is submitted.
  void be_called(std::string title) { title_ = std::move(title); }
  const std::string& title() const { return title_; }

  int rank() const { return comm_->rank(); }
  int size() const { return comm_->size(); }
  Communicator& comm() const { return *comm_; }
  bool needs_no_mpi() const { return comm_->node_path().serves_all() || comm_->size() == 1; }

  // Local. Throws UsageError for what no rank could carry out, and where an operation of this name
  // is in flight; Error once a rank has left. `arrays` live until the operation has ended.
  // `why_refused`: of a refusal.
  std::shared_ptr<NamedOperation> submit(std::string name, const Submission& what,
                                         std::vector<NamedArray> arrays,
                                         std::vector<std::int64_t> splits,
                                         std::string why_refused = {});
  // This rank has no more arrays of its own: see Board::join().
  std::shared_ptr<NamedOperation> join();
  // Write what happens from now on there, until the next call; null: nowhere. `prefix` comes before
  // all names.
  void write_to(std::shared_ptr<Timeline> timeline, std::string prefix);
  // This rank leaves; what is not agreed on ends with an error on all ranks. Does not wait.
  void close() noexcept;
  // Throws PeerLost where a rank has ended while this one waits for something else, `where`.
  void look_for_lost(std::string_view where) const;

  // For NamedOperation, and for the engine while nobody waits. Goes on as far as possible;
  // `except` is being advanced by the caller.
  Progress drive(Operation::Caller caller, const Operation* except);
  // Nobody waits for it any more.
  void forget(NamedOperation& operation, const std::exception_ptr& reason) noexcept;
  std::string missing(const NamedOperation& operation);
  std::string own_name() const { return comm_->liveness().own_name(); }
  // For the engine: whether nothing is in flight, which it then need not drive.
  bool rests();

 private:
  using Shared = std::shared_ptr<NamedOperation>;

  void submit(const Shared& operation);
  void expect_entry_of(const Shared& operation);
  void go_on(bool waits);
  void look_after_peers();
  bool must_watch() const;
  bool waits_for_ranks();
  void publish_backlog();
  bool is_hungry() const;
  bool take_entries();
  void add_work(NamedPart part, bool joins);
  void end_what_is_left_over();
  void run_works();
  void start_works();
  Progress where(bool waits);
  void log_results(NamedOperation& operation) const;
  void finish(const Shared& operation, std::exception_ptr failure);
  void fail(const std::exception_ptr& reason) noexcept;
  std::exception_ptr loss(const std::string& text) const;
  void leave(const std::string& how, std::optional<Failure> failure = std::nullopt) noexcept;
  void hear_failure(const FailureReport& report);
  bool advance_finished(const Operation* except);
  void tell_timeline(const NamedOperation& operation, const std::exception_ptr& failure) const;

  struct alignas(64) Line {
    std::byte bytes[64];
  };

  const std::shared_ptr<Communicator> comm_;
  ResultLog* const result_log_;  // null: none
  std::string title_;
  const std::shared_ptr<Segment> segment_;  // null: no rank shares memory with this one
  const std::unique_ptr<Line[]> alone_;     // then
  mutable std::mutex intake_;               // of what follows, held for moments
  Board board_;
  std::unordered_map<Board::Place, Shared, std::hash<Board::Place>, std::equal_to<>,
                     PoolAllocator<std::pair<const Board::Place, Shared>>>
      agreed_on_;               // by whom it will be, or is now
  std::deque<Shared> backlog_;  // for which the board had no room
  bool join_waits_ = false;     // for the backlog
  std::unordered_set<std::string_view, std::hash<std::string_view>, std::equal_to<>,
                     PoolAllocator<std::string_view>>
      keys_;                      // in flight
  std::vector<Shared> finished_;  // and not yet ended
  Shared joining_;
  std::atomic<std::size_t> in_flight_{0};
  bool driven_ = false;  // the engine has something of this
  std::exception_ptr failure_;
  std::shared_ptr<Timeline> timeline_;
  std::string timeline_prefix_;

  std::mutex driving_;  // of what follows; taken before intake_
  KeptVectors kept_vectors_;
  std::deque<std::unique_ptr<NamedWork>> works_;
  std::vector<Board::Entry> entries_;  // as they are taken
  std::uint64_t under_way_ = 0;        // bytes of these
  std::atomic<bool> closed_{false};
  Progress stopped_{};
  std::uint64_t looked_ns_ = 0;
  std::atomic<std::uint64_t> busy_ns_{0};  // when something was last submitted, or came

  std::mutex heard_mutex_;
  std::optional<FailureReport> heard_;  // what ended it elsewhere

  std::unique_ptr<Relay> relay_;  // of several sites: each one's first rank has it
};

}  // namespace gradred
