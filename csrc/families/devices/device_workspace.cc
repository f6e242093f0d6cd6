#include "families/devices/device_workspace.h"

#include <algorithm>
#include <cstdint>

#include "node/paths/device_way.h"

namespace gradred {
namespace {

constexpr const char* kNotOnAll =
    "not all ranks have passed such arrays, or one cannot reduce them on its device: its "
    "comm.device_path says why";

// Whether kernels can read the caller's input there. Blocks are aligned like their vector.
bool is_aligned(const Call& call) {
  const void* const input = call.input();
  return reinterpret_cast<std::uintptr_t>(input) % size_of(call.dtype) == 0;
}

}  // namespace

Workspace* DeviceWorkspace::find(const Call& call, ArrayAccess access) {
  const Memory memory = call.out.memory;
  if (call.stream_order() != nullptr)
    return nullptr;  // the thread that advances the call must not ask the device for anything
  if (memory.is_host()) return nullptr;
  why_not_wanted_ = why_not_wanted(call, access);
  if (why_not_wanted_ != nullptr) return nullptr;
  if (call.op == Op::kPremul && !is_aligned(call)) return nullptr;
  if (device_ == nullptr) {  // only the first such call tries
    const auto ranks = static_cast<std::size_t>(size_);
    workspace_ = memory.device()->make_workspace(
        static_cast<std::size_t>(rank_), ranks, std::max(bytes_, kLeastPerRank * ranks), why_none_);
    const bool not_now = workspace_ == nullptr && why_none_.empty();
    if (not_now) return nullptr;
    device_ = memory.device();
    if (workspace_ != nullptr && !programs_) workspace_->arrays().keep_to_own();
  }
  if (device_ != memory.device() || workspace_ == nullptr || workspace_->refused()) return nullptr;
  const bool reduces = gradred::reduces(call.kind);
  why_not_reduced_.clear();
  const bool serves = !reduces || workspace_->reduces(call.op, call.dtype, why_not_reduced_);
  return serves ? workspace_.get() : nullptr;
}

// Returns nullptr if the call wants a workspace, else the reason why it wants none.
const char* DeviceWorkspace::why_not_wanted(const Call& call, ArrayAccess access) const {
  if (bytes_ == 0) return "GRADRED_IPC_BYTES is none";
  if (size_ == 1) return "one rank has no peers";
  if (!DeviceWay::serves(call.kind)) return "no calls between devices are of this kind";
  if (access != ArrayAccess::kDevices) return "the plan goes through it";
  if (call.kind != Kind::kBcast && call.input_memory() != call.out.memory) {
    return "input and result of the last call lay in different memories";
  }
  if (call.count * size_of(call.dtype) < kLeast) return "calls so far were short";
  return nullptr;
}

// About arrays that peers may read where they lie.
std::string DeviceWorkspace::text_of_arrays() const {
  const SharedArrays& arrays = workspace_->arrays();
  if (!arrays.takes_any()) return ", and are copied to be reduced: " + arrays.why_none();
  if (!arrays.takes_programs()) {
    return "; those of gradred.empty stay where they lie, others are copied: " +
           arrays.why_no_programs();
  }
  if (arrays.programs_taken()) return "; those that CUDA exports stay where they lie";
  if (arrays.taken()) return "; those of gradred.empty stay where they lie";
  return "";
}

std::string DeviceWorkspace::text() const {
  if (device_ == nullptr && why_not_wanted_ != nullptr) {
    return std::string("host memory: ") + why_not_wanted_;
  }
  if (device_ == nullptr) return "no such call yet";
  if (workspace_ == nullptr) return "host memory: " + why_none_;
  if (workspace_->refused()) return "host memory: " + workspace_->why_refused();
  if (workspace_->in_use()) {
    std::string text = workspace_->facts().is_of_one_device
                           ? "devices: all ranks' arrays are on one"
                           : "devices: the ranks' arrays are on several";
    text += text_of_arrays();
    if (workspace_->facts().is_of_one_device && workspace_->facts().is_used_by_turns) {
      text +=
          "; what has to be copied and is shorter than 2 MiB goes through host memory, since "
          "processes compute there by turns (without MPS)";
    }
    const bool went = why_not_reduced_.empty();
    return went ? text : text + "; the last ones went through host memory: " + why_not_reduced_;
  }
  const bool may = why_not_reduced_.empty();
  return "host memory: " + (may ? kNotOnAll : why_not_reduced_);
}

}  // namespace gradred
