#include "comm/communicator.h"

#include <algorithm>
#include <cstring>

#include "base/clock.h"
#include "base/errors.h"
#include "comm/comm_operation.h"
#include "comm/context.h"
#include "comm/driving.h"
#include "comm/families.h"
#include "comm/fork_guard.h"
#include "comm/mpi_handles.h"
#include "comm/node_call.h"

namespace gradred {
namespace {

int on_self_delete(mpi::Handle, int, void*, void*) {
  engine().stop();  // MPI_Finalize deletes MPI_COMM_SELF's attributes first
  stop_driving();
  Communicator::forget_all();  // not every MPI deletes those of the others
  return 0;
}

void stop_engine_at_finalize() {
  const mpi::Mpi& mpi = mpi::get();
  mpi.check(mpi.call.Comm_set_attr(mpi.is.comm_self, new_attribute(on_self_delete), nullptr),
            "MPI_Comm_set_attr");
}

// The last one that holds it may be an operation that the engine's thread has ended. What the
// communicator has of the MPI is given back by a call.
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
    throw UsageError("root " + std::to_string(call.root) + " is no rank of this communicator of " +
                     std::to_string(size));
  }
  if (call.count > 0 && (call.send == nullptr || call.recv == nullptr)) {
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
      settings_(settings()),
      deterministic_(settings_.deterministic),
      choice_(size, {settings_.plan, settings_.device_plan, settings_.slices}),
      liveness_(comm, rank, size, operation_log_) {
  observer_.profile(settings_.profile);
  direct_ = size_ == 1 && observer_.idle();
  choice_.place.why_no_memory = "no blocking call yet";
  if (size_ == 1) choice_.settle(assumed_figures());
}

Communicator::~Communicator() {
  // What is left of a failed communicator on its way must reach nobody else: it keeps its tags.
  if (operation_log_.failure()) static_cast<void>(tag_range_.release());
  if (local_group() != nullptr) Registry::get().count_group(-1);
}

void Communicator::progress() {
  if (!operation_log_.quiet()) operation_log_.progress();
  drive();
}

// ---- blocking calls -------------------------------------------------------------------------

void Communicator::prepare(WaitHook& hook) {
  if (size_ > 1 && !blocking_set_up_) set_up(hook);
}

void Communicator::run(const Call& call, WaitHook& hook) {
  if (direct_) [[likely]] {
    return carry_out(call, hook);
  }
  prepare(hook);
  observer_.idle() ? carry_out(call, hook) : observer_.run<Mode::kBlocking>(call, hook);
}

void Communicator::carry_out(const Call& call, WaitHook& hook) {
  count_operation(hook);
  if (choice_.takes_usual(call)) [[likely]] {
    const Plan& usual = *choice_.usual();
    return usual.family->run(*this, usual, call, hook);
  }
  if (choice_.measures_devices() && !device_plans_tried_ && !call.result_memory().is_host() &&
      call.plan == nullptr && size_ > 1) {
    measure_device_plans(call.result_memory(), hook);
  }
  const std::shared_ptr<const Plan> plan = plan_or_refuse(call, hook);
  if (is_staged(call, *plan)) return run_staged(call, *plan, hook);
  plan->family->run(*this, *plan, call, hook);
}

// The peers hear of this rank's mistake.
std::shared_ptr<const Plan> Communicator::plan_or_refuse(const Call& call, WaitHook& hook) {
  try {
    auto plan = plan_for(call);
    plan->family->check(*this, call);
    return plan;
  } catch (const UsageError& error) {
    refuse(error.what(), hook);
    throw;
  }
}

void Communicator::leave_to_mpi(Kind kind, std::uint64_t detail, WaitHook& hook) {
  if (node_only()) {
    refuse(kMemoryOnly, hook);
    throw UsageError(std::string(kMemoryOnly));
  }
  agree_on(make_signature(Kind::kLeftToMpi, Op::kSum, DType::kUInt8,
                          static_cast<std::uint64_t>(kind), detail),
           hook);
}

void Communicator::agree_on_init(const Call& call, WaitHook& hook) {
  Signature signature = planned_signature(call, *plan_for(call, false));
  signature.detail = mix(signature.detail, std::string_view("init"));
  agree_on(signature, hook);
}

void Communicator::agree_on(const Signature& signature, WaitHook& hook) {
  if (size_ == 1) return;
  prepare(hook);
  if (node_ != nullptr) {
    agree(signature, hook);
  } else if (path_ != nullptr) {
    const Call agreement{
        .waited = true, .plan = plan_of_agreements(choice_.place), .agreement = signature};
    const std::shared_ptr<const Plan> chosen = plan_for(agreement);
    wait_for(*chosen->family->operation(*this, *chosen, agreement), hook);
  }
}

void Communicator::run_startable(const Call& call, WaitHook& hook) {
  if (direct_) [[likely]] {
    return carry_out_startable(call, hook);
  }
  prepare(hook);
  observer_.idle() ? carry_out_startable(call, hook)
                   : observer_.run<Mode::kPersistentCall>(call, hook);
}

void Communicator::carry_out_startable(const Call& call, WaitHook& hook) {
  count_operation(hook);
  if (starts_on_node(call)) [[likely]] {
    return run_on_node(call, hook);
  }
  Call waited = call;
  waited.waited = true;
  wait_for(*operation_for(waited), hook);
}

void Communicator::run_on_node(const Call& call, WaitHook& hook) {
  if (node_queue_.any()) [[unlikely]] {
    node_queue_.finish(hook);
  }
  NodePoll poll(*this, hook);
  const std::size_t bytes = call.count * size_of(call.dtype);
  if (bytes > kLongWorkBytes) {
    hook.long_work();
    drive_if_due();
  }
  NodeCall made = node_call(call);
  std::vector<std::byte> scaled;
  try {
    if (call.op == Op::kPremul) made.send = scaled_input(call, size_, scaled);
  } catch (const std::bad_alloc&) {
    node_->abort("no memory for its input times the factor", &poll);
    throw;
  }
  node_->run(made, &poll);
  const bool reduces = call.kind == Kind::kAllreduce || call.kind == Kind::kReduceScatterBlock;
  if (reduces) scale_result(call, call.recv, call.count, size_);
}

double Communicator::one_way_latency(WaitHook& hook, unsigned turns) {
  prepare(hook);
  if (node_ == nullptr) return 0;
  if (node_queue_.any()) node_queue_.finish(hook);
  NodePoll poll(*this, hook);
  return 1e-9 * node_->one_way_latency_ns(turns, &poll);
}

// Nothing moves: the ranks only see that they asked for the same.
void Communicator::agree(const Signature& signature, WaitHook& hook) {
  if (node_queue_.any()) node_queue_.finish(hook);
  NodePoll poll(*this, hook);
  node_->run({.signature = signature}, &poll);
}

void Communicator::run_schedule(const Call& call, const Plan& plan, WaitHook& hook) {
  // The root of a broadcast hears of nobody, so the ranks agree before they begin.
  if (node_ != nullptr || call.kind == Kind::kBcast) agree_on(planned_signature(call, plan), hook);
  run_numbered(call, plan, hook);
}

void Communicator::run_numbered(const Call& call, const Plan& plan, WaitHook& hook) {
  if (call.count * size_of(call.dtype) > kLongWorkBytes) hook.long_work();
  wait_for(*operation(call, plan, true), hook);
}

void Communicator::run_alone(const Call& call) const {
  const std::size_t bytes = call.count * size_of(call.dtype);
  if (call.kind != Kind::kBcast && call.send != kInPlace && call.send != call.recv && bytes > 0) {
    std::memcpy(call.recv, call.send, bytes);
  }
  scale_input(call, call.recv, call.count);  // an average over one rank is the input
}

// ---- non-blocking calls ---------------------------------------------------------------------

bool Communicator::starts() const {
  if (size_ == 1 || node_only()) return true;
  if (!blocking_set_up_) return false;
  return (node_ != nullptr && starts_on_node_) || (threads_drive_ && path_ != nullptr);
}

// Messages move by calls of the MPI, which another thread has to be allowed to make.
bool Communicator::starts_by(const Plan& plan) const {
  const Medium medium = plan.family->medium();
  const bool by_messages =
      medium == Medium::kMessages || (medium == Medium::kLibrary && node_ == nullptr);
  return starts() && (!by_messages || threads_drive_);
}

// Where the data of a call go. What no plan can serve goes nowhere.
Medium Communicator::medium_of(const Call& call, bool started) const {
  if (started && !starts()) return Medium::kMpi;
  try {
    const std::shared_ptr<const Plan> plan = plan_for(call, !started);
    return !started || starts_by(*plan) ? plan->family->medium() : Medium::kMpi;
  } catch (const UsageError&) {
    return Medium::kNone;
  }
}

std::shared_ptr<const Plan> Communicator::plan_for(const Call& call, bool waits) const {
  return choice_.plan_for(call, waits);
}

}  // namespace gradred
