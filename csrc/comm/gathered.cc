#include "comm/gathered.h"

#include <cstring>
#include <vector>

#include "base/copy_bytes.h"
#include "families/memory/scaling.h"
#include "reduce/reduce.h"

namespace gradred {
namespace {

constexpr std::size_t kMostGathered = 8192;  // bytes of all ranks

bool of_root(const Call& call) { return info_of(call.kind).input == Part::kRoots; }

std::size_t block_of_each(const Call& call, int size) {
  const std::size_t counts = of_root(call) ? vector_counts(call.kind, size) : 1;
  return counts * call.count * size_of(call.dtype);
}

std::size_t all_bytes(const Call& call, int size) {
  return block_of_each(call, size) * (of_root(call) ? 1 : static_cast<std::size_t>(size));
}

// What moves the bytes. Ranks that share a host pass on what their leader exchanges in one
// operation if that is an allreduce, or an allgather of what fits into their slots.
Kind moved_by(const Call& call, int size, bool alone) {
  constexpr std::size_t kByBlocks =
      4096;  // bytes of all ranks from which two operations are faster
  if (!of_root(call)) {
    return alone || all_bytes(call, size) > kByBlocks ? Kind::kAllgather : Kind::kAllreduce;
  }
  return alone && has_blocks(call.kind) ? Kind::kReduceScatterBlock : Kind::kAllreduce;
}

}  // namespace

bool GatheredCall::serves(const Call& call, int size) {
  if (needs_all_ranks(call.kind) || call.kind >= Kind::kAborted) return false;
  if (call.schedule != nullptr || call.agreement) return false;
  return all_bytes(call, size) <= kMostGathered;
}

GatheredCall::GatheredCall(const Call& call, int rank, int size, bool alone,
                           std::unique_ptr<std::byte[]> memory)
    : made_(call),
      rank_(rank),
      size_(size),
      block_(block_of_each(call, size)),
      all_(memory != nullptr ? std::move(memory)
                             : std::make_unique_for_overwrite<std::byte[]>(kMostGathered)) {
  std::memset(all_.get(), 0, all_bytes(call, size));
  if (block_ > 0 && (!of_root(call) || rank == call.root)) {
    const auto* given = static_cast<const std::byte*>(call.input());
    const bool at_its_place = call.in_place() && info_of(call.kind).input == Part::kOwnBlock;
    if (at_its_place) given += block_ * static_cast<unsigned>(rank);
    copy_bytes(block_of(rank), given, block_);
    if (reduces(call.kind)) scale_input(call, block_of(rank), call.count);
  }
  const Kind kind = moved_by(call, size, alone);
  sum_ = {.kind = kind,
          .out = {all_.get()},
          .count = all_bytes(call, size) / vector_counts(kind, size),
          .waited = call.waited,
          .persistent = call.persistent,
          .mpi_request = call.mpi_request,
          .plan = "",
          .agreement = call.signature()};
}

std::byte* GatheredCall::block_of(int rank) const {
  return all_.get() + (of_root(made_) ? 0 : static_cast<std::size_t>(rank) * block_);
}

void GatheredCall::finish() {
  auto* const result = static_cast<std::byte*>(made_.out.data);
  const std::size_t bytes = made_.count * size_of(made_.dtype);
  if (bytes == 0) return;
  if (reduces(made_.kind)) return reduce();
  if (info_of(made_.kind).result == Part::kRoots) {
    if (rank_ == made_.root) copy_bytes(result, all_.get(), all_bytes(made_, size_));
  } else if (rank_ != made_.root || (has_blocks(made_.kind) && !made_.in_place())) {
    const bool has_all = has_blocks(made_.kind) && sum_.kind == Kind::kAllreduce;
    const std::size_t begin = has_all ? static_cast<std::size_t>(rank_) * bytes : 0;
    copy_bytes(result, all_.get() + begin, bytes);
  }
}

void GatheredCall::reduce() const {
  const RankRange ranks = reduced_ranks(made_.kind, rank_, size_);
  if (ranks.count() == 0) return;
  std::vector<const void*> inputs;
  for (int rank = ranks.first; rank < ranks.first + ranks.count(); ++rank) {
    inputs.push_back(block_of(rank));
  }
  fold(*find_reduction(made_.op, made_.dtype), size_of(made_.dtype), made_.out.data, inputs,
       made_.count);
  settle_result(made_, made_.out.data, rank_, size_);
}

}  // namespace gradred
