#include "comm/observer.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <memory>
#include <new>
#include <numeric>

#include "base/clock.h"
#include "by_mpi/mpi_operation.h"
#include "calls/place_among_all.h"
#include "comm/dispatch.h"
#include "messages/agreement.h"
#include "mpi/world_ranks.h"
#include "notices/comm_liveness.h"
#include "set_up/set_up_calls.h"

namespace gradred {
namespace {

// An MPI has some thousand communicators for the whole program: profiles take only a few of them.
constexpr int kMostComparisons = 16;
std::atomic<int> comparisons{0};  // alive in this process

constexpr std::size_t kMostComparedBytes = std::size_t{256} << 20;
// Shorter calls are repeated, and made once untimed before, so that the code and the peers are
// warm.
constexpr std::size_t kShortBytes = std::size_t{64} << 10;
constexpr unsigned kTurns = 4;

std::size_t bytes_of(const Call& call) { return call.count * size_of(call.dtype); }

// The size of the buffer that the call writes.
std::size_t result_bytes(const Call& call, int size) {
  const bool all =
      call.kind == Kind::kAllgather || (call.kind == Kind::kReduceScatterBlock && call.in_place());
  return bytes_of(call) * (all ? static_cast<std::size_t>(size) : 1);
}

template <class Body>
std::uint64_t shortest_ns(unsigned turns, Body&& body) {
  std::uint64_t shortest = ~std::uint64_t{0};
  for (unsigned turn = 0; turn < turns; ++turn) {
    const std::uint64_t begin = now_ns();
    body();
    shortest = std::min(shortest, now_ns() - begin);
  }
  return shortest;
}

// Replaces the values by the largest of all ranks, on all of them.
template <std::size_t n>
void agree_on_largest(std::array<std::uint64_t, n>& values, mpi::Handle comm) {
  const mpi::Mpi& mpi = mpi::get();
  mpi.check(mpi.call.Allreduce(mpi.is.in_place, values.data(), static_cast<int>(n),
                               mpi.is.uint64_type, mpi.is.max_op, comm),
            "MPI_Allreduce");
}

// nullptr if the MPI has no communicators left.
std::shared_ptr<Duplicate> make_comparison(SetUpCalls& calls) {
  const mpi::Handle copy = calls.duplicate();
  if (copy == 0) return nullptr;
  ++comparisons;
  const std::shared_ptr<Duplicate> made(new Duplicate, [](Duplicate* last) {
    --comparisons;
    delete last;
  });
  made->comm = copy;
  return made;
}

}  // namespace

// ---- set-up ---------------------------------------------------------------------------------

Observer::~Observer() {
  if (trace_ != nullptr) trace_->close_line(trace_line_);
}

void Observer::profile(bool wanted) {
  if (!wanted) profile_ = nullptr;
  if (!wanted || profile_ != nullptr) return;
  const auto [rank, size] = place_among_all(parts_.member.rank, parts_.member.size);
  profile_ = std::make_shared<Profile>();
  profile_->started_at(now_ns(), rank, size);
}

void Observer::set_up(SetUpCalls& calls, Trace* trace, std::uint64_t began_ns) {
  if (profile_ != nullptr) {
    std::uint64_t compares = parts_.path != nullptr && comparisons < kMostComparisons ? 1 : 0;
    calls.bcast(&compares, sizeof compares);
    if (compares != 0) comparison_ = make_comparison(calls);
  }
  open(trace, began_ns);
}

void Observer::open(Trace* trace, std::uint64_t began_ns) {
  trace_ = trace;
  if (trace_ != nullptr) trace_line_ = trace_->open_line();
  if (profile_ == nullptr) return;
  std::vector<int> world = parts_.liveness.names().world_ranks();
  if (world.empty()) {  // spawned or connected: the ranks of this communicator
    world.resize(static_cast<std::size_t>(parts_.member.size));
    std::iota(world.begin(), world.end(), 0);
  }
  quick_profile_ = profile_.get();
  profile_->set_up(node() != nullptr && trace_ == nullptr, std::move(world), now_ns() - began_ns);
}

NodeGroup* Observer::node() const { return parts_.node_path.node(); }

void Observer::log_results(ResultLog* log) {
  results_ = log != nullptr ? std::make_shared<LoggedResults>(*log, parts_.member.size) : nullptr;
}

// ---- blocking calls ---------------------------------------------------------------------------

inline void Observer::carry_out(const Call& call, WaitHook& hook, Mode mode) {
  const std::uint64_t number = results_ == nullptr ? 0 : results_->begin();
  if (mode == Mode::kBlocking) {
    dispatch_.run(call, hook);
  } else {
    dispatch_.run_startable(call, hook);
  }
  if (results_ != nullptr) [[unlikely]] {
    results_->end(number, results_->result_of(call));
  }
}

template <Mode mode>
void Observer::run(const Call& call, WaitHook& hook) {
  if (quick_profile_ == nullptr) [[unlikely]] {
    return profile_ == nullptr ? run_traced(call, hook, mode) : run_timed(call, hook, mode);
  }
  ProfileRow* const row = quick_profile_->count_untimed(call, mode);
  if (row == nullptr) [[unlikely]] {
    return run_timed(call, hook, mode);
  }
  // Calls are untimed only if all ranks share memory.
  node()->charge_long_waits(row->waits());
  carry_out(call, hook, mode);
}
template void Observer::run<Mode::kBlocking>(const Call&, WaitHook&);
template void Observer::run<Mode::kPersistentCall>(const Call&, WaitHook&);

void Observer::run_timed(const Call& call, WaitHook& hook, Mode mode) {
  ProfileRow& row = profile_->row(call, mode);
  NodeGroup* const node = this->node();
  const bool looks = row.looks() && node != nullptr;
  const std::uint64_t waited_before = row.waits();
  const std::uint64_t begin = now_ns();
  if (node != nullptr) {
    node->arrive(begin);
    node->charge_long_waits(row.waits());
  }
  try {
    run_traced(call, hook, mode);
  } catch (...) {
    if (node != nullptr) node->arrive(0);  // the call may not have reached an operation
    throw;
  }
  row.took(now_ns() - begin - (row.waits() - waited_before));
  row.count(bytes_of(call));
  note_way(call, mode, row);
  row.plan_sample();
  if (looks) row.look(*node);
  if (row.compares() && may_compare(call, mode)) compare_with_mpi(call, row, hook);
}

void Observer::note_way(const Call& call, Mode mode, ProfileRow& row) const {
  const Family* const family = dispatch_.family_for(call, mode != Mode::kBlocking);
  if (family == nullptr) return;
  const bool on_node = family->went() == Went::kUnknown && node() != nullptr;
  const Went went = on_node ? node()->how_it_went() : family->went();
  const bool on_devices = went == Went::kDevices || went == Went::kDevicesCopied;
  row.went(went, !call.on_host() && !on_devices && works_on_copies(family->access(call)));
}

void Observer::run_traced(const Call& call, WaitHook& hook, Mode mode) {
  if (trace_ == nullptr) return carry_out(call, hook, mode);
  const bool blocking = mode == Mode::kBlocking;
  const Family* const family = dispatch_.family_for(call, !blocking);
  if (family == nullptr || family->traced_as() == nullptr) {
    return carry_out(call, hook, mode);  // an error; or the transport traces it
  }
  TracedCall traced(trace_, trace_line_, family->traced_as(), text_of(mode), call.signature());
  carry_out(call, hook, mode);
  traced.ended();
}

// ---- started calls ----------------------------------------------------------------------------

std::shared_ptr<Observation> Observer::observation(const Call& call) const {
  if (idle()) return nullptr;
  const Family* const family = dispatch_.family_for(call, true);
  // The MPI notifies nobody of the end of its own operations.
  const bool traced = trace_ != nullptr && family != nullptr && family->went() != Went::kMpi &&
                      family->traced_as() != nullptr;
  if (profile_ == nullptr && !traced && results_ == nullptr) return nullptr;
  return std::make_shared<Observation>(profile_, traced ? trace_ : nullptr, call,
                                       traced ? family->traced_as() : nullptr, results_);
}

// ---- comparison with the MPI ------------------------------------------------------------------

// The answer depends only on what the ranks have agreed on.
bool Observer::may_compare(const Call& call, Mode mode) const {
  if (comparison_ == nullptr || mode != Mode::kBlocking) return false;
  const Family* const family = dispatch_.family_for(call, false);
  if (family != nullptr && family->went() == Went::kMpi) return false;
  // Ranks count a call that fails, but not one that they refuse themselves.
  if (node() != nullptr && node()->has_disagreed()) return false;
  if (call.kind == Kind::kReduceScatterBlock) return false;  // run_on_mpi() has none
  const bool moves = call.kind == Kind::kAllgather || call.kind == Kind::kBcast;
  return result_bytes(call, parts_.member.size) <= kMostComparedBytes &&
         (moves || mpi::get().handle_of(call.dtype).has_value());
}

// Makes the same call once more, by gradred and by the MPI, right after each other, on memory that
// holds no data of the program. All ranks do so after the same call, and first agree on it: a rank
// that did not would get an error and keep no peer waiting.
void Observer::compare_with_mpi(const Call& call, ProfileRow& row, WaitHook& hook) {
  hook.long_work();
  const std::uint64_t begin = now_ns();
  parts_.agreement.agree(
      make_signature(Kind::kLeftToMpi, call.op, call.dtype, static_cast<std::uint64_t>(call.kind),
                     mix(call.count, std::string_view("profile"))),
      hook);
  Call copy = call;
  if (!call.input_memory().is_host()) copy.in = {};  // the MPI reads the host's memory
  copy.order = nullptr;
  const std::size_t bytes = result_bytes(copy, parts_.member.size);
  const std::unique_ptr<std::byte[]> scratch(new (std::nothrow) std::byte[bytes]());
  std::array<std::uint64_t, 1> lacking = {scratch == nullptr ? 1U : 0U};
  agree_on_largest(lacking, comparison_->comm);
  if (lacking[0] != 0) return row.plan_comparison(1, 1);

  copy.out = {.data = scratch.get()};
  const bool brief = bytes <= kShortBytes;
  const unsigned turns = brief ? kTurns : 1;
  const auto by_mpi = [&] { run_on_mpi(copy, parts_.member.size, comparison_->comm); };
  const auto by_us = [&] { dispatch_.run(copy, hook); };
  if (brief || row.counts().compared == 0) {  // the first comparison warms up
    by_mpi();
    by_us();
  }
  const std::uint64_t mpi_ns = shortest_ns(turns, by_mpi);
  const std::uint64_t own_ns = shortest_ns(turns, by_us);
  std::array<std::uint64_t, 2> agreed = {now_ns() - begin, own_ns};
  agree_on_largest(agreed, comparison_->comm);
  row.compared(own_ns, mpi_ns, now_ns() - begin);
  row.plan_comparison(agreed[0], agreed[1]);
}

}  // namespace gradred
