#include "families/devices/library_operation.h"

#include <atomic>
#include <optional>

#include "base/clock.h"
#include "base/errors.h"
#include "base/failure.h"
#include "calls/family.h"
#include "calls/member.h"
#include "calls/plan_choice.h"
#include "engine/notices/comm_liveness.h"
#include "families/memory/node_operation.h"
#include "families/memory/node_path.h"
#include "memory/stream_order.h"

namespace gradred {

// ---- the ranks of a communicator ----------------------------------------------------------------

std::string LibraryRanks::why_not(const Call& call) {
  if (!why_not_.empty()) return why_not_;
  if (call.averages_integers()) return "means of integers are computed in host memory";
  const Memory memory = call.out.memory;
  if (memory.is_host()) return "it takes arrays in GPUs' memory, and this rank's lie in the host's";
  if (call.kind != Kind::kBcast && call.input_memory() != memory) {
    return "input and result lie in different memories";
  }
  if (memory_ != nullptr && memory_ != memory.device()) {
    return "the communicator's earlier calls on this plan were on arrays of " + memory_->name() +
           ", and this one is on arrays of " + memory.name();
  }
  std::string why;
  CollectiveLibrary* const library = memory.device()->collectives(plan_, why);
  if (library == nullptr) return why;
  if (call.stream_order() != nullptr && call.stream_order()->stream()) {
    library->check_stream(*call.stream_order()->stream());
  }
  return reduces(call.kind) ? library->why_not(call.op, call.dtype).value_or("") : "";
}

bool LibraryRanks::is_turn(std::uint64_t turn) {
  const std::lock_guard lock(turns_mutex_);
  return next_ == turn;
}

void LibraryRanks::pass(std::uint64_t turn) {
  const std::lock_guard lock(turns_mutex_);
  if (turn >= next_) passed_.insert(turn);
  while (passed_.erase(next_) > 0) ++next_;
}

LibraryRanks::PeerInfo LibraryRanks::peer_info(const Call& call, int rank, int ranks) noexcept {
  PeerInfo info;
  memory_ = call.out.memory.device();
  const std::lock_guard lock(mutex_);
  try {
    std::string why;
    CollectiveLibrary& library = *memory_->collectives(plan_, why);
    info.device = memory_->identity();
    info.shares_devices = library.shares_devices() ? 1 : 0;
    group_ = library.open(rank, ranks, info.ticket);
  } catch (const std::exception& error) {
    std::string(error.what()).copy(info.why_not, sizeof info.why_not - 1);
  }
  return info;
}

void LibraryRanks::connect(const std::vector<PeerInfo>& all) {
  std::string why;
  const CollectiveLibrary& library = *memory_->collectives(plan_, why);
  for (std::size_t one = 0; one < all.size() && why_not_.empty(); ++one) {
    if (all[one].why_not[0] != '\0') {
      why_not_ = "rank " + std::to_string(one) + ": " + all[one].why_not;
    }
    for (std::size_t other = 0; other < one && why_not_.empty(); ++other) {
      if (all[one].device != all[other].device) continue;
      on_one_device_ = true;
      if (all[one].shares_devices != 0 && all[other].shares_devices != 0) continue;
      why_not_ = "ranks " + std::to_string(other) + " and " + std::to_string(one) +
                 " are on one GPU, and " + library.one_rank_each();
    }
  }
  const std::lock_guard lock(mutex_);
  if (!why_not_.empty()) require_group();
  std::vector<CollectiveLibrary::Ticket> tickets;
  for (const PeerInfo& one : all) tickets.push_back(one.ticket);
  group_->connect(tickets);
  joined_ = true;
}

bool LibraryRanks::is_connected(LibraryGroup& group) {
  try {
    return group.is_connected();
  } catch (const LibraryRefusal& error) {
    if (!on_one_device_) throw;
    why_not_ = error.what();
    joined_ = false;
    group.abort();  // the other ranks see that
  }
  require_group();
  return false;
}

std::string LibraryRanks::text() const {
  if (!why_not_.empty()) return why_not_;
  std::string why;
  CollectiveLibrary* const library =
      memory_ != nullptr ? memory_->collectives(plan_, why) : nullptr;
  if (library == nullptr) return "no call yet";
  return library->name() + " on " + memory_->name() + (joined_ ? "" : ", not connected");
}

void LibraryRanks::require_group() const {
  if (joined_) return;
  const char* const kNever = "the call by which its ranks were to connect has failed";
  throw UsageError("plan '" + std::string(plan_) +
                   "' cannot serve this communicator: " + (why_not_.empty() ? kNever : why_not_));
}

void LibraryRanks::abort() noexcept {
  const std::lock_guard lock(mutex_);
  if (group_ != nullptr) group_->abort();
}

// ---- one call -----------------------------------------------------------------------------------

namespace {

using PeerInfo = LibraryRanks::PeerInfo;

class LibraryOperation final : public StartedOperation {
 public:
  // What the ranks send each other if they have not connected yet; alive until they have.
  struct Exchange {
    PeerInfo mine;
    std::vector<PeerInfo> all;
  };

  LibraryOperation(std::shared_ptr<const Parts> parts, LibraryRanks& ranks, const Call& call,
                   std::unique_ptr<Exchange> exchange, std::shared_ptr<StartedOperation> agreement)
      : parts_(std::move(parts)),
        ranks_(ranks),
        call_(call),
        turn_(ranks_.take_turn()),
        exchange_(std::move(exchange)),
        agreement_(std::move(agreement)) {}

  std::string waiter() const override { return parts_->liveness.own_name(); }
  std::string waits_for() const override {
    if (phase_ == Phase::kAgrees) return agreement_->waits_for();
    return "a call on GPUs' arrays (" + describe_with_bytes(call_.signature()) + ")";
  }
  WaitRecord wait_record() const override {
    return phase_ == Phase::kAgrees ? agreement_->wait_record() : WaitRecord{};
  }
  bool is_first_to_wait() const override {
    return phase_ != Phase::kAgrees || agreement_->is_first_to_wait();
  }
  UsedTransport used_transport() const override { return UsedTransport::kLibrary; }
  bool needs_no_mpi() const override { return parts_->node_path.serves_all(); }
  bool must_end() const override { return true; }
  std::size_t bytes() const override { return call_.count * size_of(call_.dtype); }
  bool spins() const override { return parts_->node_path.spins(); }
  bool is_given() const override { return ended() || (stream() && phase_ == Phase::kRuns); }
  // A failed peer leaves the program's stream waiting, whatever the program's threads do. So the
  // progress thread looks after the operation.
  bool is_left() const override {
    return stream() && phase_ == Phase::kRuns && !call_.stream_order()->asks_driver();
  }

 protected:
  bool step() override {
    if (phase_ == Phase::kAgrees && !agree()) return false;
    stop_at({Progress::State::kPolls, {}});
    if (phase_ == Phase::kWaits && !start()) return look();
    if (phase_ == Phase::kStarts) {
      if (!ranks_.use([](LibraryGroup& group) { return group.is_started(); })) return look();
      if (stream() && !call_.stream_order()->mark()) captured_ = true;
      ranks_.pass(turn_);
      phase_ = Phase::kRuns;
    }
    if (captured_) return true;
    if (stream()) return call_.stream_order()->has_passed() || look();
    return ranks_.use([](LibraryGroup& group) { return group.ready(); }) || look();
  }

  void give_up(const std::exception_ptr& reason) noexcept override {
    if (phase_ == Phase::kAgrees) agreement_->abandon(reason);
    withdraw();
  }
  // The work given to the library is cut off, and its group can no longer be used. Calls on which
  // the ranks did not agree leave the group as it is.
  void withdraw() noexcept override {
    ranks_.pass(turn_);
    if (exchange_ && agreement_->holds_memory()) static_cast<void>(exchange_.release());
    if (phase_ != Phase::kAgrees) ranks_.abort();
  }
  void on_end(bool well) noexcept override {
    if (!well && !is_usage_error(failure())) {
      tell_peers();
      parts_->libraries.abort();  // calls by other plans wait for the same peers
    }
    if (call_.before() != nullptr) call_.before()->rest();
    StartedOperation::on_end(well);
  }

 private:
  enum class Phase : std::uint8_t { kAgrees, kWaits, kStarts, kRuns };

  // The peers wait on their devices for work that does not come.
  void tell_peers() noexcept {
    parts_->liveness.fail(failure());
    if (NodeGroup* const group = parts_->node_path.group()) {
      FailureReport report = report_of(failure());
      report.text += " (found by " + parts_->liveness.own_name() + ")";
      group->poison(report);
    }
  }

  std::optional<std::uint64_t> stream() const {
    return call_.stream_order() != nullptr ? call_.stream_order()->stream() : std::nullopt;
  }

  bool agree() {
    if (const Progress progress = agreement_->advance(caller()); !progress) {
      stop_at(progress);
      return false;
    }
    if (exchange_ && agreement_->failed()) ranks_.try_again();
    agreement_->rethrow();
    if (exchange_) ranks_.connect(exchange_->all);
    exchange_.reset();
    phase_ = Phase::kWaits;
    return true;
  }

  // Starts the call at its turn, once the work that the program gave to the array's streams is
  // done.
  bool start() {
    if (!ranks_.is_turn(turn_)) return false;
    if (!stream() && call_.before() != nullptr && !call_.before()->ready()) return false;
    const bool begun = ranks_.use([&](LibraryGroup& group) {
      if (!ranks_.is_connected(group)) return false;
      if (stream()) call_.stream_order()->begin();
      group.start(library_call());
      return true;
    });
    if (begun) phase_ = Phase::kStarts;
    return begun;
  }

  LibraryCall library_call() const {
    const bool gathers = call_.kind == Kind::kAllgather;
    const std::size_t block = call_.count * size_of(call_.dtype);
    const auto* const place = static_cast<const std::byte*>(call_.out.data) +
                              (gathers ? block * static_cast<std::size_t>(parts_->member.rank) : 0);
    const bool moves = gathers || call_.kind == Kind::kBcast;
    return {.kind = call_.kind,
            .input = call_.in_place() ? place : call_.in.data,
            .result = call_.out.data,
            .count = moves ? block : call_.count,
            .dtype = moves ? DType::kUInt8 : call_.dtype,
            .op = moves ? Op::kSum : call_.op,
            .factor = call_.factor,
            .root = call_.root,
            .stream = stream()};
  }

  // Looks for failures from time to time: a rank that has ended leaves the others waiting on their
  // devices.
  bool look() {
    constexpr std::uint64_t kEveryNs = 20'000'000;
    const std::uint64_t now = now_ns();
    if (now - looked_ns_ < kEveryNs) return false;
    looked_ns_ = now;
    if (const NodeGroup* const group = parts_->node_path.group()) group->throw_if_poisoned();
    parts_->liveness.receive_notices();
    parts_->liveness.throw_if_failed();
    parts_->liveness.throw_if_lost("a call on GPUs' arrays");
    return false;
  }

  const std::shared_ptr<const Parts> parts_;
  LibraryRanks& ranks_;
  const Call call_;
  const std::uint64_t turn_;
  std::unique_ptr<Exchange> exchange_;  // the agreement reads and writes it
  const std::shared_ptr<StartedOperation> agreement_;
  std::atomic<Phase> phase_{Phase::kAgrees};
  bool captured_ = false;  // into a CUDA graph, which the program launches when it likes
  std::uint64_t looked_ns_ = now_ns();
};

}  // namespace

// ---- the libraries of a communicator ------------------------------------------------------------

LibraryRanks& Libraries::ranks(std::string_view plan) {
  const std::lock_guard lock(mutex_);
  return ranks_.try_emplace(plan, plan).first->second;
}

void Libraries::abort() noexcept {
  const std::lock_guard lock(mutex_);
  for (auto& [plan, ranks] : ranks_) ranks.abort();
}

std::string Libraries::text() const {
  const std::lock_guard lock(mutex_);
  std::string text;
  for (const auto& [plan, ranks] : ranks_) {
    text += "; plan " + std::string(plan) + ": " + ranks.text();
  }
  return text;
}

// The first call on a communicator gathers what the ranks need to connect, and that gather also
// agrees on the call. Later calls only agree, and move no data.
std::shared_ptr<StartedOperation> library_operation(const Parts& parts, const Call& call,
                                                    const Plan& plan) {
  const auto inner_operation = [&](const Call& made) {
    const std::shared_ptr<const Plan> chosen = parts.choice.plan_for(made, false);
    return family_of(*chosen).operation(parts, *chosen, made);
  };
  const Signature signature = planned_signature(call, plan);
  LibraryRanks& ranks = parts.libraries.ranks(plan.source->name());
  std::unique_ptr<LibraryOperation::Exchange> exchange;
  std::shared_ptr<StartedOperation> agreement;
  if (ranks.first()) {
    exchange = std::make_unique<LibraryOperation::Exchange>();
    exchange->mine = ranks.peer_info(call, parts.member.rank, parts.member.size);
    exchange->all.resize(static_cast<std::size_t>(parts.member.size));
    Call gather{.kind = Kind::kAllgather, .in = {&exchange->mine}, .out = {exchange->all.data()}};
    gather.count = sizeof(PeerInfo);
    gather.plan = "";  // the selector's choice, whatever the settings ask for
    gather.layout = mix(signature.what, signature.detail);
    agreement = inner_operation(gather);
  } else if (parts.node_path.serves_all()) {
    agreement = enqueue(parts.owner.keep(parts.node_path), signature);
  } else {
    agreement = inner_operation({.plan = plan_of_agreements(parts.place), .agreement = signature});
  }
  return std::make_shared<LibraryOperation>(parts.owner.keep(parts), ranks, call,
                                            std::move(exchange), std::move(agreement));
}

}  // namespace gradred
