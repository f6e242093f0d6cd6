// gradred's side of an MPI communicator: topology, the paths its calls can take, operations in
// flight.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/rank_names.h"
#include "comm/call.h"
#include "comm/comm_liveness.h"
#include "comm/kept.h"
#include "comm/library_operation.h"
#include "comm/node_queue.h"
#include "comm/observer.h"
#include "comm/operation_log.h"
#include "comm/path.h"
#include "comm/plan_choice.h"
#include "comm/registry.h"
#include "comm/settings.h"
#include "comm/staged.h"
#include "comm/started.h"
#include "comm/waiting.h"
#include "engine/engine.h"
#include "node/group.h"
#include "plan/plan.h"

namespace gradred {

class NodeOperation;
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
  RankNames names() const { return liveness_.names(); }  // local
  std::string own_name() const { return liveness_.own_name(); }
  bool freed() const { return liveness_.freed(); }
  mpi::Handle handle() const { return user_; }
  bool& inside_call() { return inside_call_; }
  std::uint64_t key() const { return key_; }  // the same on all ranks; 0 before set-up
  std::uint64_t begun() const { return operation_log_.begun(); }  // operations over messages

  // Its parts, for the operations that use them. Of messages: where there are any.
  CommLiveness& liveness() { return liveness_; }
  OperationLog& operation_log() { return operation_log_; }
  SchedulePath& path() { return *path_; }
  NodeQueue& node_queue() { return node_queue_; }

  // Blocking, and collective over the ranks that live, of which no MPI call is made: a communicator
  // of these, which serves what goes through shared memory. `ended` gets the others, by their ranks
  // in MPI_COMM_WORLD. Throws UsageError where no memory is shared, else as Shrinking::run() does.
  std::shared_ptr<Communicator> shrink(WaitHook& hook, std::vector<int>& ended);
  // Blocking and collective: a communicator of processes that no MPI connects, which serves what
  // goes through shared memory. Throws UsageError, on all ranks, where they share none.
  static std::shared_ptr<Communicator> connect(Bootstrap& calls);
  // Whether the MPI knows nothing of this communicator, since shrink() or connect() has made it.
  bool node_only() const { return state_ == State::kNodeOnly; }
  void free_memory() { liveness_.forget_handle(); }
  // Blocking and collective: sets up what gradred needs, unless that is done.
  void prepare(WaitHook& hook);
  // Blocking: returns when the result is in place. The first such call on a communicator sets up
  // what gradred needs, together with all ranks.
  void run(const Call& call, WaitHook& hook);
  // Local: returns at once, before any peer has to do anything. Where MPI calls from several
  // threads are allowed, the progress thread drives it, and the MPI has a request for it; else only
  // those who wait do.
  std::shared_ptr<StartedOperation> start(const Call& call);
  // The same for who needs no operation that has ended well by then, as short ones often have: null
  // in place of it.
  std::shared_ptr<StartedOperation> start_unless_ended(const Call& call) {
    const bool alone = direct_ && starts_on_node(call) && call.op != Op::kPremul &&
                       !node_queue_.any() && !operation_log_.has_failed();
    return alone ? start_short(call) : start(call);
  }
  // Whether non-blocking calls are gradred's own: agreed by the set-up, so that all ranks decide
  // alike. Else, and always before the set-up, the MPI carries them out.
  bool starts() const;
  // Whether the program should be told now, and once, that the MPI carries out all that it starts,
  // and that ranks whose calls differ do not hear of it: no blocking call has come first. On rank
  // 0.
  bool should_tell_of_mpi() {
    constexpr unsigned kMany = 16;  // a few may come before the first call that blocks
    if (rank_ != 0 || told_of_mpi_ || started_on_mpi_ < kMany) return false;
    told_of_mpi_ = true;
    return true;
  }
  // Agreed: whether on all ranks thread_may_drive().
  bool threads_drive() const { return threads_drive_; }
  // Likewise of those by this plan.
  bool starts_by(const Plan& plan) const;
  // Whether the work of a call that starts is given to the stream in whose order it is.
  bool keeps_streams(const Call& call) const;

  // Seconds that a flag takes between the cores of rank 0 and rank 1; 0 on other ranks, and where
  // no memory is shared. Blocking and collective.
  double one_way_latency(WaitHook& hook, unsigned turns);
  // Lets the MPI underneath and all operations in flight get on.
  void progress();
  // This rank's arguments of its next call were refused: the peers' calls fail with this reason,
  // and the communicator stays usable. The first for calls that block; the second for those that do
  // not, and local as they are.
  void refuse(std::string_view reason, WaitHook& hook);
  void refuse_started(std::string_view reason);
  // Blocking: all ranks agree to leave this call to the MPI; `detail` is what else they compare.
  void leave_to_mpi(Kind kind, std::uint64_t detail, WaitHook& hook);
  // Blocking: all ranks agree on what a persistent call will be.
  void agree_on_init(const Call& call, WaitHook& hook);
  // Blocking, on the path that start() takes: a rank may call this where a peer starts and waits.
  void run_startable(const Call& call, WaitHook& hook);
  // For the operations that wait for their turn on the node.
  std::uint64_t next_number() { return operation_log_.begin(); }
  // This rank leaves an operation over messages without its result, and tells the peers why. The
  // operation that it returns has ended when nothing of that is left.
  std::shared_ptr<Operation> leave(std::uint64_t number, std::string_view reason);
  // Blocking: until those have ended. Open MPI 5 crashes where a communicator is freed with a
  // non-blocking collective call in flight on it.
  void finish_on_mpi(WaitHook& hook);
  // What run() or, without `waits`, start() would choose, with the reason. Local; before the first
  // run() it is not known where the ranks are, and the MPI carries out all calls. Throws UsageError
  // where no plan can serve the call.
  std::shared_ptr<const Plan> plan_for(const Call& call, bool waits = true) const;
  const Topology& topology() const { return choice_.place.topology; }
  bool shares_memory() const { return node_ != nullptr; }
  bool spins() const { return spins_; }  // each rank of this host has a core of its own
  const NodeGroup& node() const { return *local_group(); }  // where memory is shared
  std::string node_reason() const { return choice_.place.why_no_memory; }
  // Whether, of several hosts, the ranks of each share memory. Agreed.
  bool hosts_share_memory() const {
    return choice_.place.topology.hosts > 1 && choice_.place.why_no_host_memory.empty();
  }
  // In words, how calls on arrays in devices' memory that could go from device to device have gone.
  // Local.
  std::string device_path() const;
  std::string own_device_path() const;  // but for libraries' plans
  // What each plan took that was measured for such calls, a length after the other. Local.
  std::vector<std::string> device_plans_measured() const { return choice_.device_plans.texts(); }
  // Those that share memory with this rank, by its own host's: null where it is alone there.
  NodeGroup* local_group() const { return node_ != nullptr ? node_.get() : host_.get(); }
  std::string host_reason() const { return choice_.place.why_no_host_memory; }

  // Whether alltoalls go through shared memory, where alone they can go. Agreed.
  bool serves_alltoall() const { return starts_on_node({.kind = Kind::kAlltoall}); }

  // For the observer: the same as run() and run_startable() once all is set up, unobserved; where
  // the data of a call go; the MPI's own call.
  void carry_out(const Call& call, WaitHook& hook);
  void carry_out_startable(const Call& call, WaitHook& hook);
  Medium medium_of(const Call& call, bool started) const;
  void run_on_mpi(const Call& call, mpi::Handle comm) const;
  void agree_on(const Signature& signature, WaitHook& hook);
  bool has_messages() const { return path_ != nullptr; }

  // For the families of plans, which choose among these.
  void run_alone(const Call& call) const;
  void run_on_node(const Call& call, WaitHook& hook);
  void run_schedule(const Call& call, const Plan& plan, WaitHook& hook);
  void run_agreed_on_mpi(const Call& call, const Plan& plan, WaitHook& hook);
  std::shared_ptr<StartedOperation> node_operation(const Call& call);
  std::shared_ptr<StartedOperation> scheduled_operation(const Call& call, const Plan& plan);
  std::shared_ptr<StartedOperation> mpi_operation(const Call& call);
  std::shared_ptr<StartedOperation> hierarchical_operation(const Call& call, const Plan& plan);
  void run_hierarchical(const Call& call, const Plan& plan, WaitHook& hook);
  std::shared_ptr<StartedOperation> library_operation(const Call& call, const Plan& plan,
                                                      LibraryKind kind);
  LibraryRanks& library_ranks(std::string_view plan, LibraryKind kind);
  void abort_libraries() noexcept;  // what any of them has under way on this rank's device

 private:
  enum class State : std::uint8_t { kFresh, kReady, kMpiOnly, kNodeOnly };

  void set_up(WaitHook& hook);
  void set_up_parts(WaitHook& hook);
  Figures figures(SetUpCalls& calls, WaitHook& hook);
  void adopt(Established& made);

  bool starts_on_node(const Call& call) const {
    return choice_.takes_usual(call) && node_ != nullptr && starts_on_node_;
  }
  std::shared_ptr<const Plan> plan_or_refuse(const Call& call, WaitHook& hook);
  template <class What>
  std::shared_ptr<NodeOperation> enqueue(const What& what);
  static bool is_staged(const Call& call, const Plan& plan);
  void wait_for_input(const Call& call, WaitHook& hook);
  void measure_device_plans(Memory memory, WaitHook& hook);
  DeviceFigures device_place(DeviceMemory& memory, const DevicePlans::Candidates& candidates,
                             WaitHook& hook);
  bool recall_device_plans(DeviceFigures& figures, const DevicePlans::Candidates& candidates,
                           std::span<const std::size_t> lengths, WaitHook& hook);
  void keep_device_plans(const DeviceFigures& figures) const;
  void run_staged(const Call& call, const Plan& plan, WaitHook& hook);
  static bool flows(const Call& call, const Plan& plan);
  static bool is_aligned(const Call& call);
  Workspace* workspace_for(const Call& call, const Plan& plan);
  void run_flowing(const Call& call, const Plan& plan, WaitHook& hook);
  std::shared_ptr<StartedOperation> staged_operation(const Call& call, const Plan* plan,
                                                     const StagedOperation::Make& make);
  std::shared_ptr<StartedOperation> start_short(const Call& call);
  void launch(const std::shared_ptr<StartedOperation>& operation, const Call& call);
  void care_for(const std::shared_ptr<StartedOperation>& operation, const Call& call);
  std::shared_ptr<StartedOperation> operation_for(const Call& call);
  std::shared_ptr<StartedOperation> operation_on_mpi(const Call& call);
  std::shared_ptr<StartedOperation> inner_operation(const Call& call);
  void run_numbered(const Call& call, const Plan& plan, WaitHook& hook);
  // `waited`: as Call::waited.
  std::shared_ptr<CommOperation> operation(const Call& call, const Plan& plan, bool waited);
  template <class Made>
  std::shared_ptr<CommOperation> begin_operation(const Call& call, const Plan& plan, bool waited);
  void agree(const Signature& signature, WaitHook& hook);
  std::shared_ptr<Operation> leave_refused(std::string_view reason);
  std::shared_ptr<Operation> refuse_on_host(std::string_view reason);

  mpi::Handle user_;
  int rank_, size_;
  std::atomic<State> state_{State::kFresh};
  const Settings settings_;  // this rank's, when it first met the communicator
  bool deterministic_;       // rank 0's since set-up
  std::uint64_t key_ = 0;
  bool inside_call_ = false;                  // the caller's: see python/one_thread.h
  bool threads_drive_ = false;                // agreed: thread_may_drive() on all ranks
  bool starts_on_node_ = false;               // agreed: may_start_on_node() on all ranks
  bool spins_ = false;                        // see spins()
  bool direct_ = false;                       // set up, and nobody observes the calls
  std::atomic<bool> blocking_set_up_{false};  // agreed: a blocking call has set up the rest
  unsigned started_on_mpi_ = 0;               // before that
  bool told_of_mpi_ = false;
  std::mutex mutex_;  // of what set-up changes
  PlanChoice choice_;
  std::unique_ptr<TagRange> tag_range_;
  std::unique_ptr<SchedulePath> path_;
  std::unique_ptr<Workspace> workspace_;            // what all ranks' devices read
  DeviceMemory* workspace_of_ = nullptr;            // its device; null: nobody wanted one
  std::string why_no_workspace_, why_not_reduced_;  // the latter of the last call that wanted one
  bool device_plans_tried_ = false;                 // measure_device_plans() has begun
  std::mutex libraries_mutex_;
  std::map<std::string_view, LibraryRanks> library_ranks_;  // by plan, of those that were called
  std::unique_ptr<NodeGroup> node_;                         // of all ranks
  std::unique_ptr<NodeGroup> host_;                         // of several hosts: of this one's ranks
  NodeQueue node_queue_;                                    // of the operations of either
  std::shared_ptr<NodeOperation> spare_;                    // for the next start_short()
  std::vector<std::weak_ptr<StartedOperation>> on_mpi_;     // under mutex_; some may have ended
  Observer observer_{*this};
  OperationLog operation_log_;
  CommLiveness liveness_;
  KeptOperations kept_;  // of calls that block; uses all of the above
};

// Throws UsageError where the type lacks the operation, and for what no path serves.
void validate(const Call& call, int size);
// The same of what the MPI does not serve.
void check_mpi_call(const Call& call);

// The call with its plan, and what the ranks compare of it.
Call planned(const Call& call, const Plan& plan);
Signature planned_signature(const Call& call, const Plan& plan);

}  // namespace gradred
