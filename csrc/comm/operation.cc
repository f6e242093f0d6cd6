// One call on its way through a communicator's schedule path.
#include <unistd.h>

#include <algorithm>

#include "base/clock.h"
#include "base/errors.h"
#include "base/failure.h"
#include "base/news.h"
#include "base/status.h"
#include "comm/communicator.h"
#include "comm/members.h"
#include "comm/node_operation.h"
#include "comm/set_up.h"
#include "node/neighbours.h"

namespace gradred {
namespace {

// Between looks at what peers say of an operation that waits.
constexpr unsigned kStepsPerLook = 64;
constexpr std::uint64_t kOperationsPerLook = 16;
// Ranks that wait longer compare what they wait for: they may wait for each other.
constexpr std::uint64_t kPatienceNs = 50'000'000;

// The engine drives it from now on, as far as it may.
void keep(std::shared_ptr<Operation> operation) {
  const bool may = operation->needs_no_mpi() ? settings().progress_thread : thread_may_drive();
  engine().add(std::move(operation), may ? Engine::Driven::kByThread : Engine::Driven::kByCalls);
}

}  // namespace

// Waits, without blocking, until the tags are free; then runs. When it is refused, here or by a
// peer, it ends with an error once nothing of it is left.
class CommOperation final : public ScheduledOperation {
 public:
  CommOperation(std::shared_ptr<Communicator> comm, const Call& call, Plan plan,
                std::uint64_t number)
      : ScheduledOperation(call, comm->rank(), comm->size()),
        comm_(std::move(comm)),
        plan_(std::move(plan)),
        number_(number) {}
  // It gets its number when the ranks of the host have agreed.
  CommOperation(std::shared_ptr<Communicator> comm, const Call& call, Plan plan,
                std::shared_ptr<NodeOperation> agreement)
      : CommOperation(std::move(comm), call, std::move(plan), 0) {
    agreement_ = std::move(agreement);
    agreed_ = false;
  }

  std::string waiter() const override { return comm_->own_name(); }
  std::string waits_for() const override {
    return !agreed_ ? agreement_->waits_for() : comm_->scheduled_text(number_, call_);
  }
  bool is_first_to_wait() const override {
    return !agreed_ ? agreement_->is_first_to_wait() : comm_->is_first_to_wait(number_);
  }
  bool spins() const override { return comm_->spins(); }
  void observe(std::shared_ptr<Observation> observation) override {
    if (agreement_) agreement_->observe(observation);  // where the ranks meet
    StartedOperation::observe(std::move(observation));
  }

 protected:
  bool step() override {
    if (!agreed_ && !agree()) return false;
    if (!refusal_) {
      try {
        if ((has_runner() || find_runner()) && ScheduledOperation::step()) return true;
        if (++looks_ % kStepsPerLook == 0) look();
      } catch (const UsageError& error) {
        refuse(error.what());
      } catch (const PeerLost&) {
        throw;
      } catch (const TimeoutError&) {
        throw;
      } catch (const TransportError& error) {  // often the first that is heard of a peer's end
        if (!comm_->ledger_.failure()) comm_->throw_if_peer_ended(error.what());
        throw;
      }
    }
    return refusal_ ? leave() : false;
  }

  void on_end(bool well) noexcept override {
    if (!agreed_) return StartedOperation::on_end(well);  // they did not agree
    auto runner = release_runner();
    if (well || !refusal_) comm_->ledger_.end(number_);
    if (!well && !is_usage_error(failure())) comm_->fail(failure());
    if (well && runner) comm_->path_->give_back(std::move(runner));
    StartedOperation::on_end(well);
  }

  void give_up(const std::exception_ptr& reason) noexcept override {
    if (!agreed_) agreement_->abandon(reason);
    ScheduledOperation::give_up(reason);
  }

 private:
  bool agree() {
    if (const Progress progress = agreement_->advance(caller()); !progress) {
      stop_at(progress);
      return false;
    }
    agreement_->rethrow();
    number_ = agreement_->number();
    agreed_ = true;
    post_begun(number_ | LastBegun::kOverMessages, call_.signature());
    return true;
  }

  bool find_runner() {
    comm_->throw_if_failed();
    comm_->throw_if_peers_failed(call_.kind, number_);
    Ledger& ledger = comm_->ledger_;
    if (number_ % kOperationsPerLook == 0) ledger.progress();  // who never waits hears as well
    comm_->hear_after_pause();
    comm_->throw_if_failed();
    if (const auto reason = ledger.refusal(number_)) throw UsageError(*reason);
    if (!ledger.may_start(number_)) return false;
    since_ns_ = now_ns();
    use(comm_->path_->take(call_, plan_), comm_->path_->transport().tags().tag(number_));
    return true;
  }

  void look() {
    Ledger& ledger = comm_->ledger_;
    ledger.progress();
    ledger.answer(number_, call_.signature());
    comm_->throw_if_failed();
    throw_if_lost();
    if (const auto reason = ledger.refusal(number_)) throw UsageError(*reason);
    if (const auto reason = ledger.disagreement(number_, call_.signature())) {
      throw UsageError(*reason);
    }
    if (told_ || !has_runner() || now_ns() - since_ns_ < kPatienceNs) return;
    told_ = true;
    if (any_news() && comm_->find_lost()) return;  // throw_if_peers_failed()
    ledger.tell_waiting(number_, call_.signature());
  }

  void throw_if_lost() {
    comm_->throw_if_lost("operation " + std::to_string(number_) + " over messages", number_);
  }

  void refuse(const char* reason) {
    refusal_ = reason;
    drain();  // receives nothing any more, and so can say that it has left
    comm_->leave(number_, reason);
  }

  // Until all ranks have come to this operation and know of its end: nothing of it stays behind.
  bool leave() {
    throw_if_left_by_all();
    if (++looks_ % kStepsPerLook != 0) return false;
    try {
      comm_->throw_if_failed();
      throw_if_lost();
    } catch (const PeerLost&) {
      throw_if_left_by_all();  // it has ended since, with the same error
      throw;
    }
    return false;
  }

  void throw_if_left_by_all() {
    comm_->ledger_.progress();
    if (drain() && comm_->ledger_.settled(number_)) throw UsageError(*refusal_);
  }

  std::shared_ptr<Communicator> comm_;
  const Plan plan_;
  std::shared_ptr<NodeOperation> agreement_;
  std::atomic<std::uint64_t> number_;
  std::atomic<bool> agreed_{true};
  std::optional<std::string> refusal_;
  unsigned looks_ = 0;
  std::uint64_t since_ns_ = 0;
  bool told_ = false;
};

// Clears away what is left of refused operations while the program goes on.
class Settling final : public Operation {
 public:
  Settling(std::shared_ptr<Communicator> comm, std::uint64_t number)
      : comm_(std::move(comm)), number_(number) {}

  std::string waiter() const override { return comm_->own_name(); }
  std::string waits_for() const override { return "what is left of a refused operation"; }
  bool must_end() const override { return true; }

 protected:
  void on_end(bool well) noexcept override {
    if (!well) comm_->fail(failure());
  }
  bool step() override {
    if (comm_->ledger_.progress()) return true;
    if (++looks_ % kStepsPerLook != 0) return false;
    comm_->throw_if_failed();
    comm_->throw_if_lost("what is left of a refused operation", number_);
    return false;
  }
  void withdraw() noexcept override {}

 private:
  std::shared_ptr<Communicator> comm_;
  const std::uint64_t number_;
  unsigned looks_ = 0;
};

std::shared_ptr<StartedOperation> Communicator::operation(const Call& call, const Plan& plan,
                                                          std::uint64_t number) {
  Call planned = call;
  planned.path = plan.hash();
  post_begun(number | LastBegun::kOverMessages, planned.signature());
  return std::make_shared<CommOperation>(shared_from_this(), planned, plan, number);
}

// The ranks of a host agree on it first.
std::shared_ptr<StartedOperation> Communicator::scheduled_operation(const Call& call,
                                                                    const Plan& plan) {
  if (node_ == nullptr) return operation(call, plan, ledger_.begin());
  Call planned = call;
  planned.path = plan.hash();
  return std::make_shared<CommOperation>(shared_from_this(), planned, plan,
                                         enqueue(planned.signature()));
}

std::shared_ptr<StartedOperation> Communicator::start(const Call& call) {
  throw_if_failed();
  const std::shared_ptr<Observation> observation = direct_ ? nullptr : this->observation(call);
  const InCall in_call(observation.get(), observation ? observation->start_ns() : 0);
  std::shared_ptr<StartedOperation> operation;
  try {
    operation = operation_for(call);
  } catch (const std::bad_alloc&) {
    refuse_started("no memory for its input times the factor");
    throw;
  }
  operation->observe(observation);
  const bool handed_over = call.mpi_request && !thread_may_drive() && operation->hand_over();
  if (!handed_over) launch(operation, call);
  return operation;
}

// One that is complete when it starts needs neither the engine nor a request, unless it is
// persistent: then the MPI's functions tell when the program has waited for it.
void Communicator::launch(const std::shared_ptr<StartedOperation>& operation, const Call& call) {
  try {
    if (operation->advance() && !call.persistent) return;
    const bool found_by_mpi =
        thread_may_drive() || (operation->needs_no_mpi() && completes_inside_mpi());
    if (call.mpi_request && found_by_mpi) operation->open_request(operation);
    if (!operation->ended()) return keep(operation);
    operation->complete_request();
  } catch (...) {  // it has its number: the peers would wait for it
    operation->abandon(std::current_exception());
    throw;
  }
}

std::shared_ptr<StartedOperation> Communicator::operation_for(const Call& call) {
  if (!starts()) return mpi_operation(call);
  std::shared_ptr<const Plan> plan;
  try {
    plan = plan_for(call, false);
    plan->family->check(call);
  } catch (const UsageError& error) {
    refuse_started(error.what());
    throw;
  }
  return starts_by(*plan) ? plan->family->operation(*this, *plan, call) : mpi_operation(call);
}

std::shared_ptr<Operation> Communicator::leave(std::uint64_t number, std::string_view reason) {
  ledger_.leave(number, reason);
  auto settling = std::make_shared<Settling>(shared_from_this(), number);
  if (!settling->advance()) keep(settling);
  return settling;
}

// ---- refused arguments ------------------------------------------------------------------------

std::string Communicator::refused_text(std::string_view reason) const {
  return own_name() + " refused its arguments: " + std::string(reason);
}

// Over messages a refused call has a number, too.
std::shared_ptr<Operation> Communicator::leave_refused(std::string_view reason) {
  const std::uint64_t number = ledger_.begin();
  post_begun(number | LastBegun::kOverMessages,
             make_signature(Kind::kAborted, Op::kSum, DType::kUInt8, 0));
  return leave(number, refused_text(reason));
}

void Communicator::refuse(std::string_view reason, WaitHook& hook) {
  if (size_ == 1) return;
  prepare(hook);
  if (node_ != nullptr) {
    if (any_started_) finish_started(hook);
    NodePoll poll(*this, hook);
    node_->abort(reason, &poll);
  } else if (path_ != nullptr) {
    const auto settling = leave_refused(reason);
    // Where no thread of ours may do it, nobody else would receive what the peers have sent.
    const bool threads = thread_may_drive();
    if (!threads) wait_for(*settling, hook);
  }
}

void Communicator::refuse_started(std::string_view reason) {
  if (size_ == 1 || !starts()) return;  // the peers' calls went to the MPI
  if (node_ == nullptr) {
    leave_refused(reason);
    return;
  }
  const auto operation = enqueue(reason);
  if (!operation->advance()) keep(operation);
}

// ---- after an error that only some ranks know of ------------------------------------------------

void Communicator::fail(const std::exception_ptr& thrown) noexcept {
  process_poisoned.store(true, std::memory_order_relaxed);
  try {
    FailureReport report = report_of(thrown);
    report.text += " (found by " + own_name() + ")";
    note_failure(report);
    ledger_.fail(report, any_news() ? failed_ranks() : std::vector<int>());
  } catch (const std::exception&) {
    // The peers cannot be told: they find out by themselves.
  }
}

void Communicator::throw_if_failed() {
  if (const auto failure = ledger_.failure()) throw_report(*failure, shares_memory());
}

bool Communicator::failed() const {
  return ledger_.failure().has_value() || (node_ != nullptr && node_->poisoned());
}

// To send to a rank that has ended without MPI_Finalize ends this process, too: MPICH 5 crashes,
// Open MPI 5 aborts, and the latter in any call. So what the launcher says counts before that. No
// rank can have carried out a call to which this one has given nothing yet, but for a broadcast.
void Communicator::throw_if_peers_failed(Kind kind, std::uint64_t number) {
  if (kind == Kind::kBcast) return;
  const auto failure = failure_before("operation " + std::to_string(number) + " over messages");
  if (!failure) return;
  ledger_.note_failure(*failure);
  throw_if_failed();
}

// What the launcher tells of members that have failed before this rank came to a call. To send them
// anything may end the process.
std::optional<FailureReport> Communicator::failure_before(std::string_view call) const {
  if (!any_news()) return std::nullopt;
  const RankNames names = this->names();
  const auto failure = failure_among(names.world_ranks());
  if (!failure) return std::nullopt;
  if (const auto verdict = verdict_among(names.world_ranks())) return report_from(*verdict);
  return FailureReport{Failure::kPeerLost, names.of(failure->first) + failure->second + " before " +
                                               own_name() + " came to " + std::string(call)};
}

// Who has done something else for a while may have peers that have given up, and say so, since.
void Communicator::hear_after_pause() {
  constexpr std::uint64_t kPauseNs = 1'000'000;
  constexpr int kLooks = 4;  // the MPI takes in at the first what it shows at the next
  const std::uint64_t now = now_ns();
  if (now - heard_ns_.exchange(now, std::memory_order_relaxed) < kPauseNs) return;
  for (int look = 0; look < kLooks; ++look) ledger_.progress();
}

std::vector<int> Communicator::failed_ranks() const {
  return failures_among(names().world_ranks());
}

void Communicator::hear() {
  if (path_ != nullptr) ledger_.progress();
}

// An error of the MPI comes a moment before the system says that the process has ended.
void Communicator::throw_if_peer_ended(const std::string& error) {
  try {
    ledger_.progress();  // a peer that has gone may have said why
  } catch (const TransportError&) {
    // It is the error that is being looked into.
  }
  throw_if_failed();
  for (int look = 0; look < 30; ++look) {
    if (const auto lost = find_lost()) throw PeerLost(*lost + ": " + error, shares_memory());
    usleep(10'000);
  }
}

std::optional<std::string> Communicator::find_lost() const {
  if (auto ended = ended_among(neighbours(), names_)) return ended;
  return lane_ != nullptr ? lost_member(lane_->duplicate->comm) : std::nullopt;
}

void Communicator::throw_if_lost(std::string_view where, std::optional<std::uint64_t> number) {
  const auto lost = lost_.look([&] {
    if (number) throw_if_left(*number);
    return find_lost();
  });
  if (!lost) return;
  throw PeerLost(*lost + " while " + own_name() + " waits in " + std::string(where),
                 shares_memory());
}

// A peer of this host that begins nothing any more, and has not begun this.
void Communicator::throw_if_left(std::uint64_t number) const {
  for (const auto& [rank, process] : neighbours()) {
    const Farewell* said = farewell_of(process);
    if (said == nullptr) continue;
    for (std::uint32_t i = 0; i < said->known; ++i) {
      const auto [communicator, operations] = said->begun[i];
      if (communicator != key_ || number < operations) continue;
      throw PeerLost(names_.of(rank, process_text(process)) + " " + said->reason + "; " +
                         own_name() + " waits in operation " + std::to_string(number) +
                         " over messages",
                     shares_memory());
    }
  }
}

// Of the ranks of this host.
bool Communicator::is_first_to_wait(std::uint64_t number) const {
  const std::vector<int> waiting = ledger_.waiting(number);
  return std::ranges::none_of(neighbours(), [&](const auto& member) {
    const auto& [rank, process] = member;
    return rank < rank_ && std::ranges::find(waiting, rank) != waiting.end() && is_going(process);
  });
}

RankNames Communicator::names() const {
  if (blocking_set_up_) return names_;
  return freed() ? RankNames() : RankNames(Registry::get().world_ranks(user_));
}

std::string Communicator::scheduled_name(std::uint64_t number, const Call& call) const {
  return "operation " + std::to_string(number) + " over messages (" +
         describe_with_bytes(call.signature()) + ")" + among(size_);
}

std::string Communicator::scheduled_text(std::uint64_t number, const Call& call) const {
  const std::vector<int> waiting = ledger_.waiting(number);
  const RankNames names = this->names();
  std::string here, silent;
  for (const int rank : waiting) {
    here += (here.empty() ? "; waiting too: " : ", ") + names.of(rank);
  }
  for (int rank = 0; rank < size_; ++rank) {
    if (rank == rank_ || std::ranges::find(waiting, rank) != waiting.end()) continue;
    const auto near = std::ranges::find(neighbours(), rank, &std::pair<int, ProcessId>::first);
    const std::string details = near == neighbours().end()
                                    ? ""
                                    : process_text(near->second) + ", " + state_text(near->second);
    silent += (silent.empty() ? "; not heard of: " : ", ") + names.of(rank, details);
  }
  const auto refused = ledger_.refusal(number);
  const std::string why = refused ? ", which ends in an error for all: " + *refused : "";
  return scheduled_name(number, call) + why + here + silent;
}

}  // namespace gradred
