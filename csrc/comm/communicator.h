// gradred's side of an MPI communicator: what its ranks have agreed on, and the parts of which each
// knows one subject (docs/design/core.md).
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "base/rank_names.h"
#include "comm/agreement.h"
#include "comm/call.h"
#include "comm/comm_liveness.h"
#include "comm/device_workspace.h"
#include "comm/dispatch.h"
#include "comm/library_operation.h"
#include "comm/message_operations.h"
#include "comm/mpi_operation.h"
#include "comm/node_path.h"
#include "comm/observer.h"
#include "comm/operation_log.h"
#include "comm/path.h"
#include "comm/plan_choice.h"
#include "comm/registry.h"
#include "comm/settings.h"
#include "comm/started.h"
#include "comm/waiting.h"
#include "engine/engine.h"
#include "node/group.h"
#include "plan/plan.h"

namespace gradred {

struct Established;

// UsageError before MPI_Init and after MPI_Finalize.
void require_running_mpi();
// Whether operations in flight get on without the program: the MPI takes calls from any thread, and
// the program wants one of ours.
bool thread_may_drive();
// Whether the MPI's own functions find that an operation has ended which makes no call of the MPI,
// whoever has driven it.
bool may_start_on_node();

Engine& engine();
// The engine drives the operation from now on, as far as it may.
void let_drive(std::shared_ptr<Operation> operation);
bool may_be_driven_by_thread(const Operation& operation);

// Writes the trace of this process where settings().trace says; nothing where there is none.
void write_trace();

class Communicator : public std::enable_shared_from_this<Communicator> {
 public:
  // The state that hangs on an intracommunicator, made at first need. Local. Throws UsageError for
  // communicators that gradred does not serve and before MPI is initialised.
  static std::shared_ptr<Communicator> of(mpi::Handle comm);
  // Blocking and collective: a communicator of processes that no MPI connects, which serves what
  // goes through shared memory. Throws UsageError, on all ranks, where they share none.
  static std::shared_ptr<Communicator> connect(Bootstrap& calls);
  // Those that have not been freed.
  static std::vector<std::shared_ptr<Communicator>> alive();
  // At MPI_Finalize: they count as freed, but for those that need no MPI.
  static void forget_all();
  // MPI is deleting the attribute: the communicator is being freed.
  static void detach(void* attribute) noexcept;

  Communicator(mpi::Handle comm, int rank, int size);
  // On shared memory alone; null: of one rank.
  Communicator(int rank, int size, const Settings& settings, RankNames names,
               std::unique_ptr<NodeGroup> node);
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  mpi::Handle handle() const { return user_; }
  bool& inside_call() { return inside_call_; }
  // Whether the MPI knows nothing of this communicator, since shrink() or connect() has made it.
  bool node_only() const { return node_only_; }
  const Settings& own_settings() const { return settings_; }
  // Messages call its ranks so, by rank, and not by their numbers here. Before it is used.
  void call_ranks(const std::vector<int>& called);

  // ---- calls ------------------------------------------------------------------------------------

  // Blocking and collective: sets up what gradred needs, unless that is done.
  void prepare(WaitHook& hook);
  // After that: its calls are parts of others, whose results are written down (result_log.h).
  void log_no_results();
  // Blocking: returns when the result is in place. The first such call on a communicator sets up
  // what gradred needs, together with all ranks.
  void run(const Call& call, WaitHook& hook);
  // Blocking, on the path that start() takes: a rank may call this where a peer starts and waits.
  void run_startable(const Call& call, WaitHook& hook);
  // Local: returns at once, before any peer has to do anything. Where MPI calls from several
  // threads are allowed, the progress thread drives it, and the MPI has a request for it; else only
  // those who wait do.
  std::shared_ptr<StartedOperation> start(const Call& call);
  // The same for who needs no operation that has ended well by then, as short ones often have: null
  // in place of it.
  std::shared_ptr<StartedOperation> start_unless_ended(const Call& call);
  // Blocking, and collective over the ranks that live, of which no MPI call is made: a communicator
  // of these, which serves what goes through shared memory. `ended` gets the others, by their ranks
  // in MPI_COMM_WORLD. Throws UsageError where no memory is shared, else as Shrinking::run() does.
  std::shared_ptr<Communicator> shrink(WaitHook& hook, std::vector<int>& ended);

  // ---- what the ranks have agreed on ------------------------------------------------------------

  // Whether a blocking call has set up what gradred needs; always so where no MPI is.
  bool is_set_up() const { return set_up_; }
  std::uint64_t key() const { return key_; }  // the same on all ranks; 0 before set-up
  bool deterministic() const { return deterministic_; }
  const Place& place() const { return choice_.place; }
  // Whether on all ranks thread_may_drive(), and may_start_on_node().
  bool threads_drive() const { return threads_drive_; }
  bool starts_in_memory() const { return starts_in_memory_; }
  // Whether non-blocking calls are gradred's own, so that all ranks decide alike. Else, and always
  // before the set-up, the MPI carries them out.
  bool starts() const;

  // ---- its parts --------------------------------------------------------------------------------

  CommLiveness& liveness() { return liveness_; }
  PlanChoice& choice() { return choice_; }
  Agreement& agreement() { return agreement_; }
  Dispatch& dispatch() { return dispatch_; }
  // In the memory of this rank's host. The second keeps the communicator alive.
  NodePath& node_path() { return node_path_; }
  const NodePath& node_path() const { return node_path_; }
  std::shared_ptr<NodePath> shared_node_path() { return {shared_from_this(), &node_path_}; }
  // Over messages: the path is there where has_messages().
  bool has_messages() const { return path_ != nullptr; }
  SchedulePath& path() { return *path_; }
  OperationLog& operation_log() { return operation_log_; }
  MessageOperations& messages() { return messages_; }
  // By something else: the MPI, or libraries on devices.
  OperationsOnMpi& on_mpi() { return on_mpi_; }
  Libraries& libraries() { return libraries_; }
  DeviceWorkspace& device_workspace() { return device_workspace_; }

 private:
  void set_up(WaitHook& hook);
  void set_up_parts(WaitHook& hook);
  void observe(std::uint64_t began_ns);  // where there is shared memory alone
  Figures figures(SetUpCalls& calls, WaitHook& hook);
  void adopt(Established& made);

  const mpi::Handle user_;
  const int rank_, size_;
  const bool node_only_;
  const Settings settings_;     // this rank's, when it first met the communicator
  bool deterministic_;          // rank 0's since set-up
  bool direct_ = false;         // set up, and nobody observes the calls
  bool inside_call_ = false;    // the caller's: see python/one_thread.h
  bool threads_drive_ = false;  // agreed, as are the next two
  bool starts_in_memory_ = false;
  std::uint64_t key_ = 0;
  std::atomic<bool> set_up_{false};
  std::mutex set_up_mutex_;
  PlanChoice choice_;
  std::unique_ptr<TagRange> tag_range_;
  std::unique_ptr<SchedulePath> path_;
  OperationLog operation_log_;
  DeviceWorkspace device_workspace_;
  Libraries libraries_;
  NodePath node_path_{operation_log_};
  OperationsOnMpi on_mpi_;
  Observer observer_{*this};
  CommLiveness liveness_;
  // They use all of the above.
  Agreement agreement_{*this};
  Dispatch dispatch_{*this};
  MessageOperations messages_{*this};
};

// ---- on the way of short calls, which is in line ------------------------------------------------

inline bool Dispatch::starts_on_node(const Call& call) const {
  return comm_.choice().takes_usual(call) && comm_.node_path().serves_all() &&
         comm_.starts_in_memory();
}

inline bool Dispatch::may_start_short(const Call& call) const {
  return starts_on_node(call) && call.op != Op::kPremul && !comm_.node_path().queue().any() &&
         !comm_.operation_log().has_failed();
}

inline std::shared_ptr<StartedOperation> Communicator::start_unless_ended(const Call& call) {
  return direct_ && dispatch_.may_start_short(call) ? dispatch_.start_short(call) : start(call);
}

// Throws UsageError where the type lacks the operation, and for what no path serves.
void validate(const Call& call, int size);

// The call with its plan, and what the ranks compare of it.
Call planned(const Call& call, const Plan& plan);
Signature planned_signature(const Call& call, const Plan& plan);

}  // namespace gradred
