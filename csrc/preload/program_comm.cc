#include "preload/program_comm.h"

#include <limits>
#include <mutex>

#include "base/errors.h"
#include "families/mpi/family_mpi.h"
#include "mpi/world_ranks.h"
#include "runtime/rank_process.h"

namespace gradred::preload {
namespace {

// MPI_COMM_WORLD is used by most programs, other communicators by fewer calls: set-up takes as long
// as ten calls of the MPI.
constexpr unsigned kCallsOfMpi = 4;

constexpr std::size_t kAlways = std::numeric_limits<std::size_t>::max();
// Where all ranks share memory: longer vectors are the MPI's, because gradred is not faster
// (benchmarks/every_call.py). A broadcast or an allgather may have types that need a copy.
constexpr std::size_t most_in_memory(Kind kind) {
  if (reduces(kind)) return kAlways;
  if (kind == Kind::kAllgather) return std::size_t{1} << 20;
  return kind == Kind::kBcast ? std::size_t{16} << 20 : 0;
}

int forget(mpi::Handle, int, void* value, void*) {
  ++freed_communicators;
  delete static_cast<ProgramComm*>(value);
  return 0;
}

int key() {
  static const int made = mpi::get().new_attribute(forget);
  return made;
}

ProgramComm* make(mpi::Handle handle) {
  const mpi::Mpi& mpi = mpi::get();
  int inter = 0, rank = 0, size = 0;
  mpi.check(mpi.call.Comm_test_inter(handle, &inter), "MPI_Comm_test_inter");
  mpi.check(mpi.call.Comm_rank(handle, &rank), "MPI_Comm_rank");
  mpi.check(mpi.call.Comm_size(handle, &size), "MPI_Comm_size");
  // Ranks outside this program's MPI_COMM_WORLD may not have this library: another launch started
  // them.
  const bool is_ours = inter == 0 && size > 1 && !mpi::world_ranks(handle).empty();
  auto made = std::make_unique<ProgramComm>(handle, rank, size, is_ours);
  mpi.check(mpi.call.Comm_set_attr(handle, key(), made.get()), "MPI_Comm_set_attr");
  return made.release();
}

}  // namespace

ProgramComm::ProgramComm(mpi::Handle comm, int rank_of, int size_of, bool is_ours)
    : handle(comm), rank(rank_of), size(size_of), use_(is_ours ? Use::kUndecided : Use::kNotOurs) {}

// What a rank cannot know of its peers: each may have other settings.
bool ProgramComm::all_can() const {
  const mpi::Mpi& mpi = mpi::get();
  const std::int64_t mine = can_serve() ? 1 : 0;
  std::int64_t all = 0;
  mpi.check(mpi.call.Allreduce(&mine, &all, 1, mpi.is.int64_type, mpi.is.band_op, handle),
            "MPI_Allreduce");
  return all == 1;
}

bool ProgramComm::decide() {
  const bool is_world = handle == mpi::get().is.comm_world;
  if (++calls_ <= (is_world ? 0 : kCallsOfMpi)) return false;
  use_ = Use::kNotOurs;  // unless all of this succeeds
  if (!all_can()) return false;
  comm_ = Communicator::of(handle);
  PlainWait hook;
  comm_->prepare(hook);
  set_limits();
  use_ = Use::kOurs;
  return true;
}

void ProgramComm::set_limits() {
  const bool in_memory = comm_->node_path().serves_all();
  const bool wishes = !comm_->choice().wish.plan.empty();
  for (std::size_t i = 0; i < kCalledKinds; ++i) {
    most_bytes_[i] = in_memory ? most_in_memory(static_cast<Kind>(i)) : 0;
  }
  // Between hosts gradred has measured the MPI's allreduce, and knows where it is faster.
  const bool measured = comm_->has_messages() &&
                        (comm_->place().costs->figures().measured() || comm_->deterministic());
  asks_plan_ = wishes || !in_memory;
  if (wishes || measured) most_bytes_[static_cast<std::size_t>(Kind::kAllreduce)] = kAlways;
}

bool ProgramComm::plan_serves(const Call& call) const {
  if (call.kind != Kind::kAllreduce) return true;  // the wished plan is for this kind
  const Family* const family = comm_->dispatch().family_for(call, false);
  return family != nullptr && family != &mpi_family();
}

ProgramComm* look_up(mpi::Handle handle) noexcept try {
  const mpi::Mpi& mpi = mpi::get();
  if (handle == mpi.is.comm_null) return nullptr;
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  ProgramComm* attached = nullptr;
  int found = 0;
  if (mpi.call.Comm_get_attr(handle, key(), &attached, &found) != 0) return nullptr;
  return found != 0 ? attached : make(handle);
} catch (const std::exception&) {
  return nullptr;  // the MPI reports what is wrong with the communicator
}

}  // namespace gradred::preload
