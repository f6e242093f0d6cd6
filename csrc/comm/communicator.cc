#include "comm/communicator.h"

#include <algorithm>
#include <list>

#include "base/errors.h"
#include "calls/sums_of_leaves.h"
#include "engine/driving.h"
#include "engine/fork_guard.h"
#include "engine/waiting.h"
#include "families/families.h"

namespace gradred {
namespace {

// The communicators that this process knows.
class KnownCommunicators {
 public:
  // Callers of the functions below hold it: two threads may use a new communicator at the same
  // time.
  std::mutex mutex;
  void add(const std::shared_ptr<Communicator>& made) {
    all_.push_back(made);
    if (all_.size() < checked_at_) return;
    forget_ended();
    checked_at_ = std::max<std::size_t>(64, 2 * all_.size());
  }
  std::vector<std::shared_ptr<Communicator>> alive() {  // that have not been freed
    forget_ended();
    std::vector<std::shared_ptr<Communicator>> found;
    for (const auto& one : all_) {
      if (auto communicator = one.lock(); communicator && !communicator->liveness().freed()) {
        found.push_back(std::move(communicator));
      }
    }
    return found;
  }

 private:
  void forget_ended() {
    all_.remove_if([](const auto& one) { return one.expired(); });
  }

  std::list<std::weak_ptr<Communicator>> all_;
  std::size_t checked_at_ = 64;  // entries at which ended ones are removed next
};

// Never destroyed: callbacks of the MPI and handlers at exit may run after static destructors.
KnownCommunicators& known_communicators() {
  static auto* const known = new KnownCommunicators;
  return *known;
}

int on_delete(mpi::Handle, int, void* value, void*) {
  Communicator::detach(value);
  return 0;
}

// Of the attribute by which an MPI communicator has gradred's state.
int keyval() {
  static const int key = mpi::get().new_attribute(on_delete);
  return key;
}

int on_self_delete(mpi::Handle, int, void*, void*) {
  engine().stop();  // MPI_Finalize deletes MPI_COMM_SELF's attributes first
  stop_driving();
  complete_spare_requests();
  Communicator::forget_all();  // not every MPI deletes the attributes of other communicators
  return 0;
}

void stop_engine_at_finalize() {
  const mpi::Mpi& mpi = mpi::get();
  const int key = mpi.new_attribute(on_self_delete);
  mpi.check(mpi.call.Comm_set_attr(mpi.is.comm_self, key, nullptr), "MPI_Comm_set_attr");
}

std::size_t bytes_in_memory(const Call& call) {
  return call.on_host() ? call.count * size_of(call.dtype) : 0;
}

constexpr const char* kNotAlive =
    "a call on a communicator: it is null or has been freed. Use one that is alive.";

}  // namespace

void require_running_mpi() {
  int finalized = 0;
  mpi::get().call.Finalized(&finalized);
  if (!mpi::initialized()) {
    throw UsageError(
        "MPI is not initialised. Call MPI.Init() first. Importing mpi4py.MPI does so, unless "
        "MPI4PY_RC_INITIALIZE=0 is set, or mpi4py.rc.initialize is False. Programs of MPI sessions "
        "call it too, on all ranks, and MPI.Finalize() at the end: then gradred serves the "
        "communicators of their sessions");
  }
  if (finalized != 0) throw UsageError("MPI is already finalised: no communication is possible");
}

std::shared_ptr<Communicator> Communicator::of(mpi::Handle comm) {
  const mpi::Mpi& mpi = mpi::get();
  comm = mpi.normalise(comm);
  require_rank();
  require_running_mpi();
  if (comm == mpi.is.comm_null) throw UsageError(kNotAlive, "ERR_COMM");
  static std::once_flag once;
  std::call_once(once, stop_engine_at_finalize);
  using Shared = std::shared_ptr<Communicator>;
  const std::lock_guard lock(known_communicators().mutex);
  Shared* attached = nullptr;
  int found = 0;
  if (mpi.call.Comm_get_attr(comm, keyval(), &attached, &found) != 0)
    throw UsageError(kNotAlive, "ERR_COMM");
  if (found != 0) return *attached;
  int inter = 0, rank = 0, size = 0;
  mpi.check(mpi.call.Comm_test_inter(comm, &inter), "MPI_Comm_test_inter");
  if (inter != 0)
    throw UsageError("gradred serves intracommunicators, this is an intercommunicator");
  mpi.check(mpi.call.Comm_rank(comm, &rank), "MPI_Comm_rank");
  mpi.check(mpi.call.Comm_size(comm, &size), "MPI_Comm_size");
  const Shared made(new Communicator(comm, rank, size), destroy);
  mpi.check(mpi.call.Comm_set_attr(comm, keyval(), new Shared(made)), "MPI_Comm_set_attr");
  known_communicators().add(made);
  return made;
}

void Communicator::know() {
  const std::lock_guard lock(known_communicators().mutex);
  known_communicators().add(shared());
}

void Communicator::call_ranks(const std::vector<int>& called) {
  liveness_.call_ranks(called);
  for (NodeGroup* const group : {node_path_.node(), node_path_.host()}) {
    if (group != nullptr) group->call_ranks(called);
  }
}

std::vector<std::shared_ptr<Communicator>> Communicator::alive() {
  KnownCommunicators& known = known_communicators();
  const std::lock_guard lock(known.mutex);
  return known.alive();
}

std::vector<std::shared_ptr<Communicator>> Communicator::alive_with_lanes() {
  std::vector<std::shared_ptr<Communicator>> all = alive();
  const std::size_t known = all.size();
  for (std::size_t i = 0; i < known; ++i) {
    const std::shared_ptr<Communicator> first = all[i];
    for (Owner* const lane : first->lanes_.let_go()) {
      all.emplace_back(first, static_cast<Communicator*>(lane));  // lives as long as `first`
    }
  }
  return all;
}

void Communicator::forget_all() {
  for (const auto& communicator : alive()) {
    if (!communicator->node_only()) {
      communicator->liveness_.forget_handle();
    }
  }
}

void Communicator::detach(void* attribute) noexcept {
  const std::unique_ptr<std::shared_ptr<Communicator>> owned(
      static_cast<std::shared_ptr<Communicator>*>(attribute));
  (*owned)->liveness_.forget_handle();
}

void Communicator::destroy(Owner* last) {
  std::unique_ptr<Owner> owned(last);
  if (Engine::in_its_thread() && !thread_may_drive()) destroy_later(std::move(owned));
}

Communicator::Communicator(mpi::Handle comm, int rank, int size)
    : Communicator(Member{comm, rank, size, false}, gradred::settings()) {}

Communicator::Communicator(Member member, const Settings& settings)
    : member_(member),
      settings_(settings),
      choice_(size(),
              {settings_.plan, settings_.device_plan, settings_.slices, settings_.one_order},
              plan_sources()),
      device_workspace_(rank(), size(), settings_.ipc_bytes, settings_.ipc_programs),
      liveness_(member.comm, rank(), size(), operation_log_) {
  agreed_.deterministic = settings_.deterministic;
  agreed_.starts = size() == 1;
  observer_.profile(settings_.profile);
  observer_.log_results(ResultLog::get(settings_, rank(), size()));
  direct_ = size() == 1 && may_be_direct();
  choice_.place.why_no_memory = "no blocking call yet";
  if (size() == 1) choice_.settle(assumed_figures());
}

Communicator::~Communicator() {
  // Messages still in flight on a failed communicator must not reach another one: its tags stay
  // reserved.
  if (operation_log_.failure()) static_cast<void>(tag_range_.release());
}

// ---- calls ----------------------------------------------------------------------------------

bool Communicator::by_leaves() const {
  return settings_.by_leaves && (size() > 1 || settings_.leaves > 1);
}

bool Communicator::may_be_direct() const { return observer_.idle() && !by_leaves(); }

Call Communicator::by_tree(const Call& call) const {
  return by_leaves() ? call_by_tree(call, size(), settings_.leaves) : call;
}

void Communicator::prepare(WaitHook& hook, std::size_t first_bytes) {
  if (size() > 1 && !agreed_.set_up) set_up(hook, first_bytes);
}

void Communicator::log_no_results() {
  observer_.log_results(nullptr);
  direct_ = may_be_direct();
}

void Communicator::run(const Call& call, WaitHook& hook) {
  if (direct_) [[likely]] {
    return dispatch_.run(call, hook);
  }
  const Call made = by_tree(call);
  prepare(hook, bytes_in_memory(made));
  observer_.idle() ? dispatch_.run(made, hook) : observer_.run<Mode::kBlocking>(made, hook);
}

void Communicator::run_beside(const Call& call, WaitHook& hook, const std::function<void()>& work) {
  prepare(hook, bytes_in_memory(call));
  if (!direct_ || !dispatch_.starts_on_node(call)) {
    run(call, hook);
    return work();
  }
  const std::shared_ptr<StartedOperation> operation = start(call);
  hook.long_work();
  work();
  wait_for(*operation, hook);
}

void Communicator::run_startable(const Call& call, WaitHook& hook) {
  if (direct_) [[likely]] {
    return dispatch_.run_startable(call, hook);
  }
  const Call made = by_tree(call);
  prepare(hook, bytes_in_memory(made));
  observer_.idle() ? dispatch_.run_startable(made, hook)
                   : observer_.run<Mode::kPersistentCall>(made, hook);
}

std::shared_ptr<StartedOperation> Communicator::start(const Call& call) {
  dispatch_.throw_if_failed(call);
  if (direct_) return dispatch_.start(call, nullptr);
  const Call made = by_tree(call);
  return dispatch_.start(made, observer_.observation(made));
}

// ---- what the ranks agree on ----------------------------------------------------------------

void Communicator::agree(const Signature& signature, WaitHook& hook) {
  prepare(hook);
  agreement_.agree(signature, hook);
}

void Communicator::agree_on_init(const Call& call, WaitHook& hook) {
  prepare(hook);
  agreement_.agree_on_init(call, hook);
}

void Communicator::leave_to_mpi(Kind kind, std::uint64_t detail, WaitHook& hook) {
  prepare(hook);
  agreement_.leave_to_mpi(kind, detail, hook);
}

void Communicator::refuse(std::string_view reason, WaitHook& hook) {
  prepare(hook);
  agreement_.refuse(reason, hook);
}

}  // namespace gradred
