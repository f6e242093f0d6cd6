// gradred's side of an MPI communicator: what its ranks have agreed on, and its parts, each of
// which handles one subject (docs/design/core.md).
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
#include "comm/owner.h"
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

// Throws UsageError before MPI_Init and after MPI_Finalize.
void require_running_mpi();
class Communicator final : public Owner {
 public:
  // The state attached to an intracommunicator, made at first need. Local. Throws UsageError for
  // communicators that gradred does not serve, and before MPI is initialised.
  static std::shared_ptr<Communicator> of(mpi::Handle comm);
  // Blocking and collective. Connects processes that share no MPI communicator; everything goes
  // through shared memory. Returns nullptr on all ranks if they share none, and says why.
  static std::shared_ptr<Communicator> connect(Bootstrap& calls, std::string& why_no_memory);
  static std::vector<std::shared_ptr<Communicator>> alive();
  // At MPI_Finalize: marks all communicators as freed, except for those that need no MPI.
  static void forget_all();
  // Called when MPI deletes the attribute: the communicator is being freed.
  static void detach(void* attribute) noexcept;

  Communicator(mpi::Handle comm, int rank, int size);
  // On shared memory alone. `node` is nullptr for one rank.
  Communicator(int rank, int size, const Settings& settings, RankNames names,
               std::unique_ptr<NodeGroup> node);
  ~Communicator() override;

  std::shared_ptr<Communicator> shared() {
    return std::static_pointer_cast<Communicator>(shared_from_this());
  }

  int rank() const { return rank_; }
  int size() const { return size_; }
  mpi::Handle handle() const { return user_; }
  bool& inside_call() { return inside_call_; }
  // Whether the MPI knows nothing of this communicator, because shrink() or connect() has made it.
  bool node_only() const { return node_only_; }
  const Settings& own_settings() const { return settings_; }
  // `called`: by rank, the number that error texts use for it. Only before the communicator is
  // used.
  void call_ranks(const std::vector<int>& called);

  // ---- calls ------------------------------------------------------------------------------------

  // Blocking and collective: sets up what gradred needs, unless that has been done.
  void prepare(WaitHook& hook);
  // After prepare(): logs no results, because the calls of this communicator are parts of other
  // calls, whose results are logged (result_log.h).
  void log_no_results();
  // Blocking: returns when the result is in place. The first such call on a communicator sets up
  // what gradred needs, together with all ranks.
  void run(const Call& call, WaitHook& hook);
  // Blocking, carried out as by start(): a rank may call this while a peer starts the call and
  // waits.
  void run_startable(const Call& call, WaitHook& hook);
  // Local: returns at once, before any peer has to do anything. If the MPI allows calls from
  // several threads, the progress thread advances the operation, and the MPI has a request for it.
  // Otherwise only threads that wait advance it.
  std::shared_ptr<StartedOperation> start(const Call& call);
  // The same for callers that need no operation if it has ended well by then, as short ones often
  // have. Returns nullptr in that case.
  std::shared_ptr<StartedOperation> start_unless_ended(const Call& call);
  // Blocking, and collective over the ranks that live. Makes no MPI call once a failure is known.
  // Returns a communicator of these ranks, which serves what goes through shared memory. `ended`
  // gets the other ranks, numbered as in MPI_COMM_WORLD. Throws UsageError if the ranks share no
  // memory, else what Shrinking::run() throws.
  std::shared_ptr<Communicator> shrink(WaitHook& hook, std::vector<int>& ended);

  // ---- what the ranks have agreed on ------------------------------------------------------------

  // Whether a blocking call has set up what gradred needs. Always true without an MPI.
  bool is_set_up() const { return set_up_; }
  std::uint64_t key() const { return key_; }  // the same on all ranks; 0 before set-up
  bool deterministic() const { return deterministic_; }
  const Place& place() const { return choice_.place; }
  // Whether thread_may_drive() holds on all ranks, and whether may_start_on_node() does.
  bool threads_drive() const { return threads_drive_; }
  bool starts_in_memory() const { return starts_in_memory_; }
  // Whether gradred itself carries out nonblocking calls; all ranks decide alike. Otherwise, and
  // always before the set-up, the MPI carries them out.
  bool starts() const;

  // ---- its parts --------------------------------------------------------------------------------

  CommLiveness& liveness() { return liveness_; }
  PlanChoice& choice() { return choice_; }
  Agreement& agreement() { return agreement_; }
  Dispatch& dispatch() { return dispatch_; }
  // Through the memory of this rank's host. The shared pointer keeps the communicator alive.
  NodePath& node_path() { return node_path_; }
  const NodePath& node_path() const { return node_path_; }
  std::shared_ptr<NodePath> shared_node_path() { return keep(node_path_); }
  // Over messages: path() may be called only if has_messages().
  bool has_messages() const { return path_ != nullptr; }
  SchedulePath& path() { return *path_; }
  OperationLog& operation_log() { return operation_log_; }
  MessageOperations& messages() { return messages_; }
  // By the MPI, or by libraries on devices.
  OperationsOnMpi& on_mpi() { return on_mpi_; }
  Libraries& libraries() { return libraries_; }
  DeviceWorkspace& device_workspace() { return device_workspace_; }

 private:
  void set_up(WaitHook& hook);
  void set_up_parts(WaitHook& hook);
  void observe(std::uint64_t began_ns);  // for communicators on shared memory alone
  Figures figures(SetUpCalls& calls, WaitHook& hook);
  void adopt(Established& made);

  const mpi::Handle user_;
  const int rank_, size_;
  const bool node_only_;
  const Settings settings_;     // this rank's, when it first saw the communicator
  bool deterministic_;          // rank 0's after set-up
  bool direct_ = false;         // set up, and no call is observed
  bool inside_call_ = false;    // for the caller: see python/one_thread.h
  bool threads_drive_ = false;  // agreed on, like the next two
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
  // The parts below use all of the above.
  Agreement agreement_{*this};
  Dispatch dispatch_{*this};
  MessageOperations messages_{*this};
};

// ---- inline, because short calls pass through it ------------------------------------------------

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

// Throws UsageError if the type lacks the operation, the root is not a rank, or a buffer has no
// address.
void validate(const Call& call, int size);

// The call with its plan, and the signature of it that the ranks compare.
Call planned(const Call& call, const Plan& plan);
Signature planned_signature(const Call& call, const Plan& plan);

}  // namespace gradred
