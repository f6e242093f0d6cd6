#include "comm/communicator.h"

#include <algorithm>
#include <cstring>
#include <list>

#include "base/clock.h"
#include "base/errors.h"
#include "comm/driving.h"
#include "comm/families.h"
#include "comm/mpi_handles.h"
#include "comm/set_up.h"
#include "plan/selector.h"

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

struct Made {
  std::mutex mutex;  // two threads may meet a communicator for the first time together
  std::list<std::weak_ptr<Communicator>> all;
  std::size_t checked_at = 64;  // entries

  void add(const std::shared_ptr<Communicator>& made) {
    all.push_back(made);
    if (all.size() < checked_at) return;
    forget_ended();
    checked_at = std::max<std::size_t>(64, 2 * all.size());
  }
  void forget_ended() {
    all.remove_if([](const auto& one) { return one.expired(); });
  }

  static Made& get() {
    static auto* made = new Made;  // asked for as late as in MPI_Finalize
    return *made;
  }
};

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
  const mpi::Mpi& mpi = mpi::get();
  int initialized = 0, finalized = 0;
  mpi.call.Initialized(&initialized);
  mpi.call.Finalized(&finalized);
  if (initialized == 0) throw UsageError("MPI is not initialised: call MPI.Init() first");
  if (finalized != 0) throw UsageError("MPI is already finalised: no communication is possible");
}

Settings& settings() {
  static Settings values;
  return values;
}

bool thread_may_drive() {
  return settings().progress_thread &&
         Registry::get().thread_level() == mpi::get().is.thread_multiple;
}

bool may_start_on_node() { return thread_may_drive() || completes_inside_mpi(); }

Engine& engine() {
  static auto* engine = new Engine;  // MPI_Finalize may come after static destructors
  return *engine;
}

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

Signature planned_signature(const Call& call, const Plan& plan) {
  Call planned = call;
  planned.path = plan.hash();
  return planned.signature();
}

std::shared_ptr<Communicator> Communicator::of(mpi::Handle comm) {
  const mpi::Mpi& mpi = mpi::get();
  comm = mpi.normalise(comm);
  require_running_mpi();
  if (comm == mpi.is.comm_null) throw UsageError(kNotAlive);
  static std::once_flag once;
  std::call_once(once, stop_engine_at_finalize);
  using Shared = std::shared_ptr<Communicator>;
  const std::lock_guard lock(Made::get().mutex);
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
  Made::get().add(made);
  return made;
}

std::vector<std::shared_ptr<Communicator>> Communicator::alive() {
  Made& made = Made::get();
  std::vector<std::shared_ptr<Communicator>> found;
  const std::lock_guard lock(made.mutex);
  made.forget_ended();
  for (const auto& one : made.all) {
    if (auto communicator = one.lock(); communicator && !communicator->freed()) {
      found.push_back(std::move(communicator));
    }
  }
  return found;
}

void Communicator::forget_all() {
  for (const auto& communicator : alive()) {
    if (!communicator->node_only()) {
      communicator->freed_.store(true, std::memory_order_relaxed);
    }
  }
}

void Communicator::detach(void* attribute) noexcept {
  const std::unique_ptr<std::shared_ptr<Communicator>> owned(
      static_cast<std::shared_ptr<Communicator>*>(attribute));
  (*owned)->freed_.store(true, std::memory_order_relaxed);
}

Communicator::Communicator(mpi::Handle comm, int rank, int size)
    : user_(comm),
      rank_(rank),
      size_(size),
      settings_(settings()),
      plan_(settings_.plan),
      slices_(settings_.slices),
      deterministic_(settings_.deterministic),
      tunes_(settings_.tune) {
  if (settings_.profile) open_profile(now_ns());
  direct_ = size_ == 1 && profile_ == nullptr;
  place_.why_no_memory = "no blocking call yet";
  place_.topology = Topology::of(std::vector<int>(static_cast<std::size_t>(size_), 0));
  if (size_ == 1) settle_place(assumed_figures());
}

Communicator::~Communicator() {
  // What is left of a failed communicator on its way must reach nobody else: it keeps its tags.
  if (ledger_.failure()) static_cast<void>(lane_.release());
  if (node_) Registry::get().count_group(-1);
  if (trace_ != nullptr) trace_->close_line(trace_line_);
}

// ---- blocking calls -------------------------------------------------------------------------

void Communicator::prepare(WaitHook& hook) {
  if (size_ > 1 && !blocking_set_up_) set_up(hook);
}

void Communicator::run(const Call& call, WaitHook& hook) {
  if (direct_) [[likely]] {
    return carry_out(call, hook);
  }
  run_observed<Mode::kBlocking>(call, hook);
}

void Communicator::carry_out(const Call& call, WaitHook& hook) {
  count_operation(hook);
  if (takes_usual(call)) [[likely]] {
    return usual_->family->run(*this, *usual_, call, hook);
  }
  const std::shared_ptr<const Plan> plan = plan_or_refuse(call, hook);
  plan->family->run(*this, *plan, call, hook);
}

// The peers hear of this rank's mistake.
std::shared_ptr<const Plan> Communicator::plan_or_refuse(const Call& call, WaitHook& hook) {
  try {
    auto plan = plan_for(call);
    plan->family->check(call);
    return plan;
  } catch (const UsageError& error) {
    refuse(error.what(), hook);
    throw;
  }
}

void Communicator::leave_to_mpi(Kind kind, std::uint64_t detail, WaitHook& hook) {
  if (node_only()) {
    refuse(kShrunk, hook);
    throw UsageError(std::string(kShrunk));
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
    const Call agreement{.plan = "recursive_doubling", .agreement = signature};
    run_numbered(agreement, *plan_for(agreement), hook);
  }
}

void Communicator::run_startable(const Call& call, WaitHook& hook) {
  if (direct_) [[likely]] {
    return carry_out_startable(call, hook);
  }
  run_observed<Mode::kPersistentCall>(call, hook);
}

void Communicator::carry_out_startable(const Call& call, WaitHook& hook) {
  count_operation(hook);
  if (starts_on_node(call)) [[likely]] {
    return run_on_node(call, hook);
  }
  wait_for(*operation_for(call), hook);
}

void Communicator::run_on_node(const Call& call, WaitHook& hook) {
  if (any_started_.load(std::memory_order_acquire)) [[unlikely]] {
    finish_started(hook);
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

double Communicator::flag_time(WaitHook& hook, unsigned turns) {
  prepare(hook);
  if (node_ == nullptr) return 0;
  if (any_started_) finish_started(hook);
  NodePoll poll(*this, hook);
  return 1e-9 * node_->flag_time_ns(turns, &poll);
}

// Nothing moves: the ranks only see that they asked for the same.
void Communicator::agree(const Signature& signature, WaitHook& hook) {
  if (any_started_) finish_started(hook);
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
  const std::shared_ptr<Operation> operation = this->operation(call, plan, ledger_.begin());
  wait_for(*operation, hook);
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
  return starts() && (plan.family->medium() != Medium::kMessages || threads_drive_);
}

// What the settings ask for, within the tags that an operation may take.
std::size_t Communicator::slices_asked(const Call& call) const {
  const bool cut = call.kind == Kind::kAllreduce || call.kind == Kind::kBcast;
  if (!cut || slices_ == 0) return cut ? 0 : 1;
  return std::min(slices_, std::max<std::size_t>(call.count, 1));
}

// A plan for every call is meant for those that have it; one that a call names itself, for that
// call.
std::string_view Communicator::plan_asked(const Call& call) const {
  if (call.plan != nullptr) return call.plan;
  const Collective collective = collective_of(call.kind);
  const bool means_it =
      call.kind == Kind::kAllreduce || family_of(plan_families(), collective, plan_) != nullptr;
  return means_it ? std::string_view(plan_) : std::string_view();
}

// Where the ranks are is known: from now on it decides.
void Communicator::settle_place(Figures figures) {
  place_.size = size_;
  place_.costs = std::make_shared<Costs>(place_.topology, std::move(figures));
  if (size_ > 1 && !plan_.empty()) return;
  auto plan = std::make_shared<const Plan>(choose(plan_families(), {}, place_));
  if (plan->seconds == 0) usual_ = std::move(plan);  // nothing is cheaper, whatever the call
}

Question Communicator::question(const Call& call, bool waits) const {
  const TagSpace tags = TagSpace::make(0, Registry::get().largest_tag());
  Question question{.collective = collective_of(call.kind),
                    .bytes = call.count * size_of(call.dtype),
                    .plan = plan_asked(call),
                    .own = call.schedule.get(),
                    .slices = slices_asked(call),
                    .most_slices = tags.most_slices(),
                    .root = call.root,
                    .mpi_may_carry = waits && mpi_computes_alike(call.op, call.dtype) &&
                                     mpi_handles(combined(call.op), call.dtype)};
  if (size_ == 1) question.plan = {}, question.own = nullptr;
  return question;
}

std::shared_ptr<const Plan> Communicator::plan_for(const Call& call, bool waits) const {
  const PlanKey key = {.kind = call.kind,
                       .dtype = call.dtype,
                       .op = call.op,
                       .count = call.count,
                       .root = call.root,
                       .plan = call.plan != nullptr ? call.plan : std::string_view(),
                       .own = call.schedule,
                       .waits = waits};
  return plans_->get(key, [&] { return choose(plan_families(), question(call, waits), place_); });
}

}  // namespace gradred
