// Calls that are counted for a profile, compared with the MPI's own, or written into a trace.
#include <algorithm>
#include <array>
#include <atomic>
#include <memory>
#include <new>
#include <numeric>

#include "base/clock.h"
#include "comm/communicator.h"
#include "comm/set_up_calls.h"

namespace gradred {
namespace {

// An MPI has some thousand communicators for all of the program: a profile takes few of them.
constexpr int kMostComparisons = 16;
std::atomic<int> comparisons{0};  // of this process, at the moment

constexpr std::size_t kMostComparedBytes = std::size_t{256} << 20;
// Shorter calls are repeated, and made once before, so that the code and the peers are warm.
constexpr std::size_t kShortBytes = std::size_t{64} << 10;
constexpr unsigned kTurns = 4;

std::size_t bytes_of(const Call& call) { return call.count * size_of(call.dtype); }

// Of the buffer that the call writes.
std::size_t result_bytes(const Call& call, int size) {
  const bool all = call.kind == Kind::kAllgather ||
                   (call.kind == Kind::kReduceScatterBlock && call.send == nullptr);
  return bytes_of(call) * (all ? static_cast<std::size_t>(size) : 1);
}

template <class Body>
std::uint64_t mean_ns(unsigned turns, Body&& body) {
  const std::uint64_t begin = now_ns();
  for (unsigned turn = 0; turn < turns; ++turn) body();
  return (now_ns() - begin) / turns;
}

// The largest of the ranks' values, on all of them.
template <std::size_t n>
void agree_on_largest(std::array<std::uint64_t, n>& values, mpi::Handle comm) {
  const mpi::Mpi& mpi = mpi::get();
  mpi.check(mpi.call.Allreduce(mpi.is.in_place, values.data(), static_cast<int>(n),
                               mpi.is.uint64_type, mpi.is.max_op, comm),
            "MPI_Allreduce");
}

}  // namespace

// ---- set-up ---------------------------------------------------------------------------------

void Communicator::open_profile(std::uint64_t begin) {
  const mpi::Mpi& mpi = mpi::get();
  int rank = 0, size = 0;
  mpi.check(mpi.call.Comm_rank(mpi.is.comm_world, &rank), "MPI_Comm_rank");
  mpi.check(mpi.call.Comm_size(mpi.is.comm_world, &size), "MPI_Comm_size");
  profile_ = std::make_shared<Profile>();
  profile_->started_at(begin, rank, size);
}

void Communicator::set_up_profile(SetUpCalls& calls, std::uint64_t begin) {
  if (profile_ == nullptr) return;
  std::vector<int> world = Registry::get().world_ranks(user_);
  if (world.empty()) {  // spawned or connected: the ranks of this communicator
    world.resize(static_cast<std::size_t>(size_));
    std::iota(world.begin(), world.end(), 0);
  }
  std::uint64_t compares = path_ != nullptr && comparisons < kMostComparisons ? 1 : 0;
  calls.bcast(&compares, sizeof compares);
  if (compares != 0) {
    if (const mpi::Handle copy = calls.duplicate(); copy != 0) {
      const mpi::Mpi& mpi = mpi::get();
      mpi.check(mpi.call.Comm_set_errhandler(copy, mpi.is.errors_return),
                "MPI_Comm_set_errhandler");
      ++comparisons;
      comparison_ = std::shared_ptr<Duplicate>(new Duplicate, [](Duplicate* last) {
        --comparisons;
        delete last;
      });
      comparison_->comm = copy;
    }
  }
  if (node_ != nullptr) node_->tell_arrivals();
  profile_->set_up(node_ != nullptr, std::move(world), now_ns() - begin);
}

// ---- blocking calls ---------------------------------------------------------------------------

void Communicator::run_observed(const Call& call, WaitHook& hook, Mode mode) {
  if (profile_ != nullptr) return run_profiled(call, hook, mode);
  run_traced(call, hook, mode);
}

void Communicator::run_profiled(const Call& call, WaitHook& hook, Mode mode) {
  ProfileRow& row = profile_->row(call, mode);
  const bool times = row.times();
  const std::uint64_t begin = times ? now_ns() : 0;
  const std::uint64_t waited_before = node_ != nullptr ? node_->waited_ns() : 0;
  if (times && node_ != nullptr) node_->arrive(begin);
  run_traced(call, hook, mode);

  const std::uint64_t waited = node_ != nullptr ? node_->waited_ns() - waited_before : 0;
  if (waited != 0) row.waited(waited);
  if (!times) return row.count(bytes_of(call));
  row.took(now_ns() - begin - waited);
  const bool looks = row.looks() && node_ != nullptr;
  row.count(bytes_of(call));
  row.plan_sample();
  if (looks) row.look(*node_);
  if (row.compares() && may_compare(call, mode)) compare_with_mpi(call, row, hook);
}

void Communicator::run_traced(const Call& call, WaitHook& hook, Mode mode) {
  const bool startable = mode == Mode::kPersistentCall;
  const auto body = [&] {
    if (startable) {
      carry_out_startable(call, hook);
    } else {
      carry_out(call, hook);
    }
  };
  if (trace_ == nullptr) return body();
  const bool on_node = node_ != nullptr && (startable ? starts_on_node(call) : native(call));
  const bool by_mpi = !startable && (path_ == nullptr || is_mpi_plan(call));
  if (!on_node && !by_mpi) return body();  // the transport traces what goes by schedule
  TracedCall traced(trace_, trace_line_, on_node ? kSharedMemory : kByMpi, text_of(mode),
                    call.signature());
  body();
  traced.ended();
}

// ---- started calls ----------------------------------------------------------------------------

std::shared_ptr<Observation> Communicator::observation(const Call& call) const {
  Trace* const trace = starts_on_node(call) ? trace_ : nullptr;
  if (profile_ == nullptr && trace == nullptr) return nullptr;
  return std::make_shared<Observation>(profile_, trace, call);
}

// ---- beside the MPI's own ---------------------------------------------------------------------

// Depends on what the ranks have agreed on.
bool Communicator::may_compare(const Call& call, Mode mode) const {
  if (comparison_ == nullptr || mode != Mode::kBlocking || is_mpi_plan(call)) return false;
  if (call.kind == Kind::kReduceScatterBlock) return false;  // run_on_mpi() does it by another
  const bool moves = call.kind == Kind::kAllgather || call.kind == Kind::kBcast;
  return result_bytes(call, size_) <= kMostComparedBytes &&
         (moves || mpi::get().handle_of(call.dtype).has_value());
}

// The same call once more, by gradred and by the MPI, right after each other on memory that nobody
// needs. All ranks do so after the same call, and say so first: a rank that did not would get an
// error and keep nobody waiting.
void Communicator::compare_with_mpi(const Call& call, ProfileRow& row, WaitHook& hook) {
  hook.long_work();
  const std::uint64_t begin = now_ns();
  agree_on(
      make_signature(Kind::kLeftToMpi, call.op, call.dtype, static_cast<std::uint64_t>(call.kind),
                     mix(call.count, std::string_view("profile"))),
      hook);
  const std::size_t bytes = result_bytes(call, size_);
  const std::unique_ptr<std::byte[]> scratch(new (std::nothrow) std::byte[bytes]());
  std::array<std::uint64_t, 1> lacking = {scratch == nullptr ? 1U : 0U};
  agree_on_largest(lacking, comparison_->comm);
  if (lacking[0] != 0) return row.plan_comparison(1, 1);

  Call copy = call;
  copy.recv = scratch.get();
  const bool brief = bytes <= kShortBytes;
  const unsigned turns = brief ? kTurns : 1;
  const auto by_mpi = [&] { run_on_mpi(copy, comparison_->comm); };
  const auto by_us = [&] { carry_out(copy, hook); };
  if (brief || row.counts().compared == 0) {  // the first ever: it makes itself at home
    by_mpi();
    by_us();
  }
  const std::uint64_t mpi_ns = mean_ns(turns, by_mpi);
  const std::uint64_t own_ns = mean_ns(turns, by_us);
  std::array<std::uint64_t, 2> agreed = {now_ns() - begin, own_ns};
  agree_on_largest(agreed, comparison_->comm);
  row.compared(own_ns, mpi_ns, now_ns() - begin);
  row.plan_comparison(agreed[0], agreed[1]);
}

}  // namespace gradred
