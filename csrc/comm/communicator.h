// gradred's side of an MPI communicator: topology, the paths its calls can take, operations in
// flight.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/failure.h"
#include "base/rank_names.h"
#include "comm/call.h"
#include "comm/ledger.h"
#include "comm/lost.h"
#include "comm/offer.h"
#include "comm/path.h"
#include "comm/profile.h"
#include "comm/registry.h"
#include "comm/started.h"
#include "comm/waiting.h"
#include "engine/engine.h"
#include "node/group.h"
#include "plan/cache.h"
#include "plan/plan.h"

namespace gradred {

class CommOperation;
class NodeOperation;
class Settling;

// What the user may set; the same on all ranks unless said otherwise.
struct Settings {
  bool shared_memory = true;
  std::string plan;               // for every call that names none; empty: the selector's
  std::size_t slices = 0;         // 0: the selector's
  std::size_t ranks_on_host = 0;  // of the whole program; 0: those of the communicator
  bool progress_thread = true;    // may drive what is in flight, where the MPI allows that
  std::string trace;              // file for a Chrome trace; empty: none; may differ
  std::string fault;              // parse_fault(); empty: none
  bool profile = false;           // rank 0's decides for a communicator
  bool deterministic = false;     // likewise: plans depend on what ranks agree on alone
  bool tune = true;               // likewise: links and the MPI are measured between hosts
  std::string figures;            // folder of what was measured; empty: none; may differ
};
Settings& settings();
// UsageError before MPI_Init and after MPI_Finalize.
void require_running_mpi();
// Whether operations in flight get on without the program: the MPI takes calls from any thread, and
// the program wants one of ours.
bool thread_may_drive();
// Whether the MPI's own functions find that an operation has ended which makes no call of the MPI,
// whoever has driven it.
bool may_start_on_node();

Engine& engine();

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
  // What shrink() makes: the members of `old`, by their ranks there, on shared memory alone.
  Communicator(const Communicator& old, const std::vector<std::size_t>& members, int rank,
               std::unique_ptr<NodeGroup> node);
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  RankNames names() const;  // local
  std::string own_name() const { return names().of(rank_); }
  bool freed() const { return freed_.load(std::memory_order_relaxed); }
  mpi::Handle handle() const { return user_; }
  bool& inside_call() { return inside_call_; }
  std::uint64_t key() const { return key_; }               // the same on all ranks; 0 before set-up
  std::uint64_t begun() const { return ledger_.begun(); }  // operations over messages
  bool failed() const;
  void hear();  // what peers say beside the data

  // Blocking, and collective over the ranks that live, of which no MPI call is made: a communicator
  // of these, which serves what goes through shared memory. `ended` gets the others, by their ranks
  // in MPI_COMM_WORLD. Throws UsageError where no memory is shared, else as Shrinking::run() does.
  std::shared_ptr<Communicator> shrink(WaitHook& hook, std::vector<int>& ended);
  // Whether the MPI knows nothing of this communicator, since it was shrunk.
  bool node_only() const { return state_ == State::kNodeOnly; }
  void free_shrunk() { freed_.store(true, std::memory_order_relaxed); }
  // Blocking and collective: sets up what gradred needs, unless that is done.
  void prepare(WaitHook& hook);
  // Blocking: returns when the result is in place. The first such call on a communicator sets up
  // what gradred needs, together with all ranks.
  void run(const Call& call, WaitHook& hook);
  // Local: returns at once, before any peer has to do anything. Where MPI calls from several
  // threads are allowed, the progress thread drives it, and the MPI has a request for it; else only
  // those who wait do.
  std::shared_ptr<StartedOperation> start(const Call& call);
  // Whether non-blocking calls are gradred's own: agreed by the set-up, so that all ranks decide
  // alike. Else, and always before the set-up, the MPI carries them out.
  bool starts() const;
  // Likewise of those by this plan.
  bool starts_by(const Plan& plan) const;

  // Seconds that a flag takes between the cores of rank 0 and rank 1; 0 on other ranks, and where
  // no memory is shared. Blocking and collective.
  double flag_time(WaitHook& hook, unsigned turns);
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
  std::shared_ptr<StartedOperation> operation(const Call& call, const Plan& plan,
                                              std::uint64_t number);
  std::uint64_t next_number() { return ledger_.begin(); }
  // For the operations that the MPI carries out: how many this process has begun over this group
  // of ranks. Throws PeerLost where a member has ended, or has left with fewer than `begun`.
  std::uint64_t count_on_mpi();
  // Blocking: until those have ended. Open MPI 5 crashes where a communicator is freed with a
  // non-blocking collective call in flight on it.
  void finish_on_mpi(WaitHook& hook);
  void throw_if_member_lost(LostPeers& lost, std::uint64_t begun) const;
  // The communicator can be used no more; its ranks are told as far as they can be.
  void fail(const std::exception_ptr& thrown) noexcept;
  std::optional<FailureReport> failure_before(std::string_view call) const;
  // What run() or start() would choose, with the reason. Local; before the first run() it is not
  // known where the ranks are, and the MPI carries out all calls. Throws UsageError where no plan
  // can serve the call.
  // `waits`: who makes the call waits for it, so that it may begin with an announcement.
  std::shared_ptr<const Plan> plan_for(const Call& call, bool waits = true) const;
  const Topology& topology() const { return place_.topology; }
  bool shares_memory() const { return node_ != nullptr; }
  bool spins() const { return spins_; }             // each rank of this host has a core of its own
  const NodeGroup& node() const { return *node_; }  // where memory is shared
  std::string node_reason() const { return place_.why_no_memory; }

  // For the families of plans, which choose among these.
  void run_alone(const Call& call) const;
  void run_on_node(const Call& call, WaitHook& hook);
  void run_schedule(const Call& call, const Plan& plan, WaitHook& hook);
  void run_agreed_on_mpi(const Call& call, const Plan& plan, WaitHook& hook);
  std::shared_ptr<StartedOperation> node_operation(const Call& call);
  std::shared_ptr<StartedOperation> scheduled_operation(const Call& call, const Plan& plan);
  std::shared_ptr<StartedOperation> mpi_operation(const Call& call);

 private:
  friend class CommOperation;
  friend class NodeOperation;
  friend class Settling;
  enum class State : std::uint8_t { kFresh, kReady, kMpiOnly, kNodeOnly };

  void set_up(WaitHook& hook);
  void set_up_parts(WaitHook& hook);
  void make_offers(SetUpCalls& calls);
  SettingsOffer offered_settings() const;
  void agree_on_settings(const std::vector<SettingsOffer>& all);
  NodeOptions node_options() const;
  MemoryOffer::Wish memory_wish() const;
  void set_up_path(std::unique_ptr<Lane> lane);
  void set_up_place_of_members();
  void add_neighbour(int rank, const ProcessId& process);
  void set_up_topology(SetUpCalls& calls);
  void set_up_node(SetUpCalls& calls, const std::vector<MemoryOffer>& all);
  void open_profile(std::uint64_t begin);
  void set_up_profile(SetUpCalls& calls, std::uint64_t begin);

  std::size_t slices_asked(const Call& call) const;     // 0: the selector's
  std::string_view plan_asked(const Call& call) const;  // empty: the selector's
  void settle_place(Figures figures);
  Question question(const Call& call, bool waits) const;
  bool takes_usual(const Call& call) const {
    return usual_ != nullptr && call.plan == nullptr && !call.schedule;
  }
  bool starts_on_node(const Call& call) const {
    return takes_usual(call) && node_ != nullptr && starts_on_node_;
  }
  std::shared_ptr<const Plan> plan_or_refuse(const Call& call, WaitHook& hook);
  template <class What>
  std::shared_ptr<NodeOperation> enqueue(const What& what);
  void launch(const std::shared_ptr<StartedOperation>& operation, const Call& call);
  std::shared_ptr<StartedOperation> operation_for(const Call& call);
  std::shared_ptr<StartedOperation> operation_on_mpi(const Call& call);
  void finish_started(WaitHook& hook);
  void carry_out(const Call& call, WaitHook& hook);
  void carry_out_startable(const Call& call, WaitHook& hook);
  template <Mode mode>
  void run_observed(const Call& call, WaitHook& hook);
  void run_on_path(const Call& call, WaitHook& hook, Mode mode);
  void run_first_or_traced(const Call& call, WaitHook& hook, Mode mode);
  void run_timed(const Call& call, WaitHook& hook, Mode mode);
  void run_traced(const Call& call, WaitHook& hook, Mode mode);
  std::shared_ptr<Observation> observation(const Call& call) const;
  Medium medium_of(const Call& call, bool started) const;
  bool may_compare(const Call& call, Mode mode) const;
  void compare_with_mpi(const Call& call, ProfileRow& row, WaitHook& hook);
  void run_on_mpi(const Call& call, mpi::Handle comm) const;
  void run_numbered(const Call& call, const Plan& plan, WaitHook& hook);
  void agree(const Signature& signature, WaitHook& hook);
  void agree_on(const Signature& signature, WaitHook& hook);
  std::string refused_text(std::string_view reason) const;
  std::shared_ptr<Operation> leave(std::uint64_t number, std::string_view reason);
  std::shared_ptr<Operation> leave_refused(std::string_view reason);
  void throw_if_peers_failed(Kind kind, std::uint64_t number);
  void hear_after_pause();
  std::vector<int> failed_ranks() const;  // as the launcher says
  void throw_if_failed();
  void throw_if_lost(std::string_view where, std::optional<std::uint64_t> number = std::nullopt);
  void throw_if_left(std::uint64_t number) const;
  std::optional<std::string> find_lost() const;
  void throw_if_peer_ended(const std::string& error);
  // Those of the set-up; none before.
  std::span<const std::pair<int, ProcessId>> neighbours() const {
    if (!blocking_set_up_) return {};
    return neighbours_;
  }
  bool is_first_to_wait(std::uint64_t number) const;
  std::string scheduled_name(std::uint64_t number, const Call& call) const;
  std::string scheduled_text(std::uint64_t number, const Call& call) const;

  mpi::Handle user_;
  int rank_, size_;
  std::atomic<bool> freed_{false};
  std::atomic<State> state_{State::kFresh};
  const Settings settings_;  // this rank's, when it first met the communicator
  std::string plan_;         // rank 0's since set-up, as these two
  std::size_t slices_;
  bool deterministic_;
  bool tunes_;
  std::uint64_t key_ = 0;
  std::uint64_t group_key_ = 0;               // of its group of ranks; 0: not asked for
  bool inside_call_ = false;                  // the caller's: see python/one_thread.h
  bool threads_drive_ = false;                // agreed: thread_may_drive() on all ranks
  bool starts_on_node_ = false;               // agreed: may_start_on_node() on all ranks
  bool spins_ = false;                        // see spins()
  bool direct_ = false;                       // set up, and nobody observes the calls
  std::atomic<bool> blocking_set_up_{false};  // agreed: a blocking call has set up the rest
  std::mutex mutex_;                          // of what set-up changes
  Place place_;
  std::unique_ptr<PlanCache> plans_ = std::make_unique<PlanCache>();
  std::shared_ptr<const Plan> usual_;  // of every call that asks for none; null: it depends
  std::unique_ptr<Lane> lane_;
  std::unique_ptr<SchedulePath> path_;
  std::unique_ptr<NodeGroup> node_;
  std::mutex node_mutex_;  // of the next two, and of node_ while they wait
  std::deque<std::shared_ptr<NodeOperation>> started_;  // on the node, in order
  std::atomic<bool> any_started_{false};
  std::vector<std::weak_ptr<StartedOperation>> on_mpi_;  // under mutex_; some may have ended
  std::shared_ptr<Profile> profile_;       // null: none; this rank's wish until set-up
  Profile* quick_profile_ = nullptr;       // the same once it is set up
  Trace* trace_ = nullptr;                 // for what does not go by schedule; null: none
  std::uint32_t trace_line_ = 0;           // of blocking calls
  std::shared_ptr<Duplicate> comparison_;  // for the MPI's own collectives; null: none
  Ledger ledger_;
  Neighbours neighbours_;  // see neighbours()
  RankNames names_;        // see names()
  LostPeers lost_;
  std::atomic<std::uint64_t> heard_ns_{0};
};

// Throws UsageError where the type lacks the operation, and for what no path serves.
void validate(const Call& call, int size);
// The same of what the MPI does not serve.
void check_mpi_call(const Call& call);

// Of the call with its plan: what the ranks compare.
Signature planned_signature(const Call& call, const Plan& plan);

}  // namespace gradred
