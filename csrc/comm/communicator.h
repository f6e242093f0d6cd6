// gradred's side of an MPI communicator: what its ranks have agreed on, and its parts, each of
// which handles one subject (docs/design/house.md).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "base/rank_names.h"
#include "calls/call.h"
#include "calls/member.h"
#include "calls/owner.h"
#include "calls/parts.h"
#include "calls/plan_choice.h"
#include "calls/settings.h"
#include "comm/dispatch.h"
#include "comm/lanes.h"
#include "comm/observer.h"
#include "engine/driving.h"
#include "engine/notices/comm_liveness.h"
#include "engine/notices/operation_log.h"
#include "engine/notices/registry.h"
#include "engine/started.h"
#include "engine/waiting.h"
#include "families/devices/device_workspace.h"
#include "families/devices/library_operation.h"
#include "families/memory/node_path.h"
#include "families/messages/agreement.h"
#include "families/messages/message_operations.h"
#include "families/messages/path.h"
#include "families/mpi/mpi_operation.h"
#include "node/group/group.h"
#include "plan/plan.h"

namespace gradred {

class SetUpCalls;
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
  // The same, and the lanes that this rank has let go and that peers may still use.
  static std::vector<std::shared_ptr<Communicator>> alive_with_lanes();
  // At MPI_Finalize: marks all communicators as freed, except for those that need no MPI.
  static void forget_all();
  // Called when MPI deletes the attribute: the communicator is being freed.
  static void detach(void* attribute) noexcept;

  Communicator(mpi::Handle comm, int rank, int size);
  // On shared memory alone. `node` is nullptr for one rank.
  Communicator(int rank, int size, const Settings& settings, RankNames names,
               std::unique_ptr<NodeGroup> node);
  ~Communicator() override;
  // For the last reference, which may belong to an operation that the progress thread has ended.
  // That thread may not be allowed to free MPI objects; then a later call destroys it.
  static void destroy(Owner* last);

  std::shared_ptr<Communicator> shared() {
    return std::static_pointer_cast<Communicator>(shared_from_this());
  }

  int rank() const { return member_.rank; }
  int size() const { return member_.size; }
  mpi::Handle handle() const { return member_.comm; }
  bool& inside_call() { return inside_call_; }
  // Whether the MPI knows nothing of this communicator, because shrink() or connect() has made it.
  bool node_only() const { return member_.node_only; }
  // Whether it is freed, or a lane whose MPI has been finalised.
  bool is_over() const { return liveness_.freed() || (ends_with_mpi_ && driving_stopped()); }
  const Settings& own_settings() const { return settings_; }
  // `called`: by rank, the number that error texts use for it. Only before the communicator is
  // used.
  void call_ranks(const std::vector<int>& called);

  // ---- calls ------------------------------------------------------------------------------------

  // Blocking and collective: sets up what gradred needs, unless that has been done. `first_bytes`:
  // of the call for which it is needed; 0: not known.
  void prepare(WaitHook& hook, std::size_t first_bytes = 0);
  // After prepare(): logs no results, because the calls of this communicator are parts of other
  // calls, whose results are logged (result_log.h).
  void log_no_results();
  // Blocking: returns when the result is in place. The first such call on a communicator sets up
  // what gradred needs, together with all ranks.
  void run(const Call& call, WaitHook& hook);
  // Blocking, as run(). The caller's own `work` on its arrays is done while peers read them, where
  // all ranks share memory, else after the call.
  void run_beside(const Call& call, WaitHook& hook, const std::function<void()>& work);
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

  // ---- what the ranks have agreed on (Agreed) ---------------------------------------------------

  std::uint64_t key() const { return agreed_.key; }
  bool deterministic() const { return agreed_.deterministic; }
  // Whether this rank's settings want results that depend on no number of ranks.
  bool by_leaves() const;
  // The call as these settings want it; throws UsageError as call_by_tree() does.
  Call by_tree(const Call& call) const;
  const Place& place() const { return choice_.place; }
  bool threads_drive() const { return agreed_.threads_drive; }
  bool starts() const { return agreed_.starts; }

  // As in Agreement. Those that block first set up what gradred needs.
  void agree(const Signature& signature, WaitHook& hook);
  void agree_on_init(const Call& call, WaitHook& hook);
  // Blocking and collective, after agree_on_init(). Returns a lane for one persistent call
  // (lanes.h). Returns nullptr on all ranks if all of them promise `one_order`, or if there is no
  // memory, tag or MPI communicator left for a lane.
  std::shared_ptr<Communicator> lane(const Call& call, bool one_order, WaitHook& hook);
  // The number of a persistent call without a lane, the same on all ranks.
  std::uint64_t number_persistent() { return ++persistent_calls_; }
  void leave_to_mpi(Kind kind, std::uint64_t detail, WaitHook& hook);
  void refuse(std::string_view reason, WaitHook& hook);
  void refuse_started(std::string_view reason) { agreement_.refuse_started(reason); }

  // ---- its parts --------------------------------------------------------------------------------

  CommLiveness& liveness() { return liveness_; }
  PlanChoice& choice() { return choice_; }
  Dispatch& dispatch() { return dispatch_; }
  // Through the memory of this rank's host.
  NodePath& node_path() { return node_path_; }
  const NodePath& node_path() const { return node_path_; }
  // Over messages: path() may be called only if has_messages().
  bool has_messages() const { return path_ != nullptr; }
  SchedulePath& path() { return *path_; }
  OperationLog& operation_log() { return operation_log_; }
  // What the MPI carries out.
  OperationsOnMpi& on_mpi() { return on_mpi_; }
  const Parts& parts() const { return parts_; }

 private:
  Communicator(Member member, const Settings& settings);

  bool may_be_direct() const;
  void set_up(WaitHook& hook, std::size_t first_bytes);
  void set_up_parts(WaitHook& hook, std::size_t first_bytes);
  static bool has_failed(Owner& one);
  void know();  // alive() finds it from now on
  // From now on nonblocking calls are gradred's own, where that is possible.
  void begin_starting();
  // On shared memory alone, for the program. `began_ns`: when its set-up began.
  static std::shared_ptr<Communicator> in_memory(int rank, int size, const Settings& settings,
                                                 RankNames names, std::unique_ptr<NodeGroup> node,
                                                 std::uint64_t began_ns);
  // For communicators without a handle of the program. `first`: of the one that a lane belongs to.
  void observe(std::uint64_t began_ns, const Observer* first = nullptr);
  LaneShape lane_shape(const Call& call) const;
  // nullptr on all ranks if a lane cannot be had.
  std::unique_ptr<Communicator> new_lane(const LaneShape& shape, WaitHook& hook);
  std::unique_ptr<Communicator> lane_in_memory(const LaneShape& shape, const Settings& settings,
                                               WaitHook& hook);
  std::unique_ptr<Communicator> lane_over_messages(const LaneShape& shape, const Settings& settings,
                                                   WaitHook& hook);
  bool set_up_as_lane_of(Communicator& first, WaitHook& hook);
  Figures figures(SetUpCalls& calls, WaitHook& hook);
  void adopt(Established& made);

  const Member member_;
  const Settings settings_;  // this rank's, when it first saw the communicator
  Agreed agreed_;
  bool direct_ = false;         // set up, and no call is observed or checked
  bool inside_call_ = false;    // for the caller: see python/one_thread.h
  bool ends_with_mpi_ = false;  // a lane of a communicator of the MPI
  std::mutex set_up_mutex_;
  CommLanes lanes_{{destroy, has_failed}};
  std::shared_ptr<Duplicate> own_duplicate_;  // member_.comm of a lane for calls of the MPI
  std::uint64_t persistent_calls_ = 0;
  std::uint32_t lanes_with_rings_ = 0;
  PlanChoice choice_;
  std::unique_ptr<TagRange> tag_range_;
  std::unique_ptr<SchedulePath> path_;
  OperationLog operation_log_;
  DeviceWorkspace device_workspace_;
  Libraries libraries_;
  NodePath node_path_{operation_log_};
  OperationsOnMpi on_mpi_;
  CommLiveness liveness_;
  // The parts below use all of the above.
  const Parts parts_{{*this, member_, choice_.place, liveness_, operation_log_, node_path_, path_},
                     agreed_,
                     choice_,
                     agreement_,
                     messages_,
                     on_mpi_,
                     libraries_,
                     device_workspace_};
  Agreement agreement_{parts_};
  MessageOperations messages_{parts_, agreement_};
  Dispatch dispatch_{parts_};
  Observer observer_{parts_, dispatch_};
};

// ---- inline, because short calls pass through it ------------------------------------------------

inline std::shared_ptr<StartedOperation> Communicator::start_unless_ended(const Call& call) {
  return direct_ && dispatch_.may_start_short(call) ? dispatch_.start_short(call) : start(call);
}

}  // namespace gradred
