#include "comm/staged.h"

#include <sched.h>

#include <utility>

#include "base/errors.h"
#include "comm/communicator.h"
#include "comm/node_call.h"
#include "plan/plan.h"

namespace gradred {
namespace {

struct Lengths {  // in bytes
  std::size_t input, result;
  std::size_t room;   // of the caller's buffer for the result
  std::size_t place;  // of this rank's input in it, for calls in place

  Lengths(const Call& call, int rank, int size) {
    const std::size_t one = call.count * size_of(call.dtype);
    const std::size_t all = one * static_cast<std::size_t>(size);
    const bool gathers = call.kind == Kind::kAllgather;
    const bool scatters = call.kind == Kind::kReduceScatterBlock;
    const bool root = call.kind == Kind::kBcast && call.root == rank;
    input = scatters ? all : one;
    if (call.kind == Kind::kBcast && !root) input = 0;
    result = gathers ? all : one;
    if (root) result = 0;
    room = gathers || (scatters && call.send == kInPlace) ? all : one;
    place = gathers ? one * static_cast<std::size_t>(rank) : 0;
  }
};

// Drives everything else meanwhile, as long as the caller's device takes.
template <class Ready>
void wait_for_device(Communicator& comm, WaitHook& hook, Ready ready) {
  while (!ready()) {
    hook.waiting();
    comm.progress();
    sched_yield();
  }
}

}  // namespace

// ---- a call's host memory -----------------------------------------------------------------------

// Where input and result are the device's, one vector on the host serves both, but for
// reduce-scatters, whose input is longer.
Staging::Staging(const Call& call, int rank, int size) : call_(call), on_host_(call) {
  const Lengths bytes(call, rank, size);
  const Memory from = call.input_memory(), to = call.recv_memory;
  on_host_.send_memory = on_host_.recv_memory = Memory();
  if (call.before == nullptr)
    on_host_.before = std::make_shared<Stream>(from.is_host() ? to : from);
  if (!to.is_host() && to != from && !from.is_host()) result_.emplace(to);
  if (!to.is_host()) {
    room_ = HostAllocation(*to.device(), bytes.room);
    on_host_.recv = room_.data();
    result_bytes_ = bytes.result;
  }
  if (!from.is_host()) {
    const bool in_place = call.send == kInPlace;
    const bool one_vector = in_place || (!to.is_host() && call.kind != Kind::kReduceScatterBlock);
    const auto* const source =
        in_place ? static_cast<const std::byte*>(call.recv) + bytes.place : call.send;
    std::byte* target = room_.data() + bytes.place;
    if (one_vector) {
      on_host_.send = kInPlace;
    } else {
      input_ = HostAllocation(*from.device(), bytes.input);
      on_host_.send = target = input_.data();
    }
    if (bytes.input > 0) input_stream().copy(target, source, bytes.input);
  }
}

void Staging::copy_result() {
  if (result_bytes_ > 0) result_stream().copy(call_.recv, room_.data(), result_bytes_);
}

bool Staging::abandon(bool host_memory_is_free) noexcept {
  const bool quiet = input_stream().finish() && result_stream().finish();
  if (quiet && host_memory_is_free) return true;
  input_.keep_for_ever();
  room_.keep_for_ever();
  return quiet;
}

// ---- in flight ----------------------------------------------------------------------------------

StagedOperation::StagedOperation(const Call& call, int rank, int size, const Make& make)
    : staging_(call, rank, size), inner_(make(staging_.on_host())) {}

StagedOperation::StagedOperation(const Call& call, int rank, int size, const Make& make,
                                 ReadsAtOnce)
    : staging_(call, rank, size) {
  while (!staging_.input_is_there()) sched_yield();
  Call on_host = staging_.on_host();
  on_host.before = nullptr;
  inner_ = make(on_host);
}

std::string StagedOperation::waits_for() const {
  return inner_->ended() ? "its result to be copied to the device" : inner_->waits_for();
}

bool StagedOperation::step() {
  if (!copies_result_) {
    if (const Progress progress = inner_->advance(caller()); !progress) {
      stop_at(progress);
      return false;
    }
    inner_->rethrow();
    staging_.copy_result();
    copies_result_ = true;
  }
  return staging_.result_is_there();
}

void StagedOperation::give_up(const std::exception_ptr& reason) noexcept {
  inner_->abandon(reason);
  withdraw();
}

// The inner operation has ended: badly, or its result could not be copied.
void StagedOperation::withdraw() noexcept {
  holds_memory_ = !staging_.abandon(!inner_->holds_memory());
}

// ---- of a communicator --------------------------------------------------------------------------

bool Communicator::is_staged(const Call& call, const Plan& plan) {
  return !plan.family->reads(call.input_memory(), call.recv_memory);
}

void Communicator::run_staged(const Call& call, const Plan& plan, WaitHook& hook) {
  std::optional<Staging> staging;
  try {
    staging.emplace(call, rank_, size_);
    wait_for_device(*this, hook, [&] { return staging->input_is_there(); });
  } catch (const Error& error) {  // nothing of the call has begun
    refuse(error.what(), hook);
    throw;
  } catch (const std::bad_alloc&) {
    refuse("no host memory to stage its arrays in", hook);
    throw;
  }
  Call on_host = staging->on_host();
  on_host.before = nullptr;
  try {
    plan.family->run(*this, plan, on_host, hook);
    staging->copy_result();
    wait_for_device(*this, hook, [&] { return staging->result_is_there(); });
  } catch (const UsageError&) {  // nothing of the call is left
    throw;
  } catch (...) {
    staging->abandon(false);
    throw;
  }
}

std::shared_ptr<StartedOperation> Communicator::staged_operation(
    const Call& call, bool reads_at_once, const StagedOperation::Make& make) {
  if (!reads_at_once) return std::make_shared<StagedOperation>(call, rank_, size_, make);
  return std::make_shared<StagedOperation>(call, rank_, size_, make,
                                           StagedOperation::ReadsAtOnce());
}

}  // namespace gradred
