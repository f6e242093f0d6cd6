#include "comm/communicator.h"

#include "base/errors.h"
#include "comm/context.h"
#include "comm/driving.h"
#include "comm/fork_guard.h"
#include "comm/mpi_handles.h"

namespace gradred {
namespace {

int on_self_delete(mpi::Handle, int, void*, void*) {
  engine().stop();  // MPI_Finalize deletes MPI_COMM_SELF's attributes first
  stop_driving();
  Communicator::forget_all();  // not every MPI deletes the attributes of other communicators
  return 0;
}

void stop_engine_at_finalize() {
  const mpi::Mpi& mpi = mpi::get();
  mpi.check(mpi.call.Comm_set_attr(mpi.is.comm_self, new_attribute(on_self_delete), nullptr),
            "MPI_Comm_set_attr");
}

// The last reference may belong to an operation that the progress thread has ended. That thread may
// not be allowed to free MPI objects; then a later call destroys the communicator.
void destroy(Communicator* last) {
  std::unique_ptr<Communicator> owned(last);
  if (Engine::in_its_thread() && !thread_may_drive()) destroy_later(std::move(owned));
}

constexpr const char* kNotAlive =
    "a call on a communicator: it is null or has been freed. Use one that is alive.";

}  // namespace

void require_running_mpi() {
  int finalized = 0;
  mpi::get().call.Finalized(&finalized);
  if (!mpi::initialized()) throw UsageError("MPI is not initialised: call MPI.Init() first");
  if (finalized != 0) throw UsageError("MPI is already finalised: no communication is possible");
}

bool thread_may_drive() {
  return settings().progress_thread &&
         (!mpi::initialized() || Registry::get().thread_level() == mpi::get().is.thread_multiple);
}

bool may_start_on_node() { return thread_may_drive() || completes_inside_mpi(); }

void validate(const Call& call, int size) {
  const bool reduces = call.kind == Kind::kAllreduce || call.kind == Kind::kReduceScatterBlock;
  if (reduces && find_reduction(call.op, call.dtype) == nullptr) {
    throw UsageError(std::string(name_of(call.dtype)) + " has no operation '" +
                     std::string(name_of(call.op)) + "'");
  }
  if (call.kind == Kind::kBcast && (call.root < 0 || call.root >= size)) {
    throw UsageError("root " + std::to_string(call.root) +
                     " is not a rank of this communicator of " + std::to_string(size));
  }
  if (call.count > 0 && (call.in.data == nullptr || call.out.data == nullptr)) {
    throw UsageError(std::to_string(call.count) + " elements at address 0: there is no memory");
  }
}

Call planned(const Call& call, const Plan& plan) {
  Call planned = call;
  planned.path = plan.hash();
  return planned;
}

Signature planned_signature(const Call& call, const Plan& plan) {
  return planned(call, plan).signature();
}

std::shared_ptr<Communicator> Communicator::of(mpi::Handle comm) {
  const mpi::Mpi& mpi = mpi::get();
  comm = mpi.normalise(comm);
  require_rank();
  require_running_mpi();
  if (comm == mpi.is.comm_null) throw UsageError(kNotAlive);
  static std::once_flag once;
  std::call_once(once, stop_engine_at_finalize);
  using Shared = std::shared_ptr<Communicator>;
  const std::lock_guard lock(Context::get().communicators.mutex);
  const int keyval = Registry::get().keyval();
  Shared* attached = nullptr;
  int found = 0;
  if (mpi.call.Comm_get_attr(comm, keyval, &attached, &found) != 0) throw UsageError(kNotAlive);
  if (found != 0) return *attached;
  int inter = 0, rank = 0, size = 0;
  mpi.check(mpi.call.Comm_test_inter(comm, &inter), "MPI_Comm_test_inter");
  if (inter != 0)
    throw UsageError("gradred serves intracommunicators, this is an intercommunicator");
  mpi.check(mpi.call.Comm_rank(comm, &rank), "MPI_Comm_rank");
  mpi.check(mpi.call.Comm_size(comm, &size), "MPI_Comm_size");
  const Shared made(new Communicator(comm, rank, size), destroy);
  mpi.check(mpi.call.Comm_set_attr(comm, keyval, new Shared(made)), "MPI_Comm_set_attr");
  Context::get().communicators.add(made);
  return made;
}

void Communicator::call_ranks(const std::vector<int>& called) {
  liveness_.call_ranks(called);
  for (NodeGroup* const group : {node_path_.node(), node_path_.host()}) {
    if (group != nullptr) group->call_ranks(called);
  }
}

std::vector<std::shared_ptr<Communicator>> Communicator::alive() {
  KnownCommunicators& known = Context::get().communicators;
  const std::lock_guard lock(known.mutex);
  return known.alive();
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

Communicator::Communicator(mpi::Handle comm, int rank, int size)
    : user_(comm),
      rank_(rank),
      size_(size),
      node_only_(false),
      settings_(settings()),
      deterministic_(settings_.deterministic),
      choice_(size, {settings_.plan, settings_.device_plan, settings_.slices, settings_.one_order}),
      device_workspace_(rank, size, settings_.ipc_bytes, settings_.ipc_programs),
      liveness_(comm, rank, size, operation_log_) {
  observer_.profile(settings_.profile);
  observer_.log_results(ResultLog::get(settings_, rank_, size_));
  direct_ = size_ == 1 && observer_.idle();
  choice_.place.why_no_memory = "no blocking call yet";
  if (size_ == 1) choice_.settle(assumed_figures());
}

Communicator::~Communicator() {
  // Messages still in flight on a failed communicator must not reach another one: its tags stay
  // reserved.
  if (operation_log_.failure()) static_cast<void>(tag_range_.release());
}

// ---- calls ----------------------------------------------------------------------------------

void Communicator::prepare(WaitHook& hook) {
  if (size_ > 1 && !set_up_) set_up(hook);
}

void Communicator::log_no_results() {
  observer_.log_results(nullptr);
  direct_ = observer_.idle();
}

void Communicator::run(const Call& call, WaitHook& hook) {
  if (direct_) [[likely]] {
    return dispatch_.run(call, hook);
  }
  prepare(hook);
  observer_.idle() ? dispatch_.run(call, hook) : observer_.run<Mode::kBlocking>(call, hook);
}

void Communicator::run_startable(const Call& call, WaitHook& hook) {
  if (direct_) [[likely]] {
    return dispatch_.run_startable(call, hook);
  }
  prepare(hook);
  observer_.idle() ? dispatch_.run_startable(call, hook)
                   : observer_.run<Mode::kPersistentCall>(call, hook);
}

std::shared_ptr<StartedOperation> Communicator::start(const Call& call) {
  liveness_.throw_if_failed();
  // The call before may have failed while only a stream waited for it: its error is thrown here.
  if (call.stream_order() != nullptr && node_path_.serves_all())
    node_path_.node()->throw_if_poisoned();
  return dispatch_.start(call, direct_ ? nullptr : observer_.observation(call));
}

bool Communicator::starts() const {
  if (size_ == 1 || node_only_) return true;
  if (!set_up_) return false;
  return (node_path_.serves_all() && starts_in_memory_) || (threads_drive_ && has_messages());
}

}  // namespace gradred
