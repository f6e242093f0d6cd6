#include "device/cuda_memory.h"

#include <utility>
#include <vector>

#include "base/errors.h"
#include "base/tell_once.h"
#include "device/ipc/cuda_workspace.h"
#include "device/libraries/libraries.h"
#include "device/streams/direct_order.h"

namespace gradred::device {
namespace {

// The id of a context, which is never reused, unlike its handle. 0 if the driver does not return
// it.
std::uint64_t id_of(const Driver& driver, ContextHandle context) {
  unsigned long long id = 0;
  if (driver.call.CtxGetId == nullptr) return 0;
  return driver.call.CtxGetId(context, &id) == kSuccess ? id : 0;
}

// Objects that live as long as the process. The last one is in use; those before it belonged to
// contexts that have ended.
template <class Made>
struct Kept {
  std::uint64_t id = 0;  // of the last object's context
  std::vector<std::unique_ptr<Made>> made{};
};

// The primary context is retained from the first call on. If it was reset meanwhile, its id differs
// and it is retained again.
ContextHandle primary_of(const Driver& driver, Ordinal device) {
  static auto& all = *new std::map<Ordinal, Kept<PrimaryContext>>;  // never freed
  auto& [id, made] = all[device];
  if (made.empty() || id_of(driver, made.back()->get()) != id) {
    made.push_back(std::make_unique<PrimaryContext>(driver, device));
    id = id_of(driver, made.back()->get());
  }
  return made.back()->get();
}

}  // namespace

// Memory of pools and mapped chunks belongs to no context. For it the device's primary context is
// used, which is retained from then on. What was made in a context that has ended is gone with it
// and must not be destroyed, so the CudaMemory of that context stays, unused.
CudaMemory& CudaMemory::of(const Driver& driver, const PointerInfo& found, const Options& options) {
  static std::mutex mutex;
  static auto& all = *new std::map<ContextHandle, Kept<CudaMemory>>;  // never freed
  const std::lock_guard lock(mutex);
  const ContextHandle context =
      found.context != nullptr ? found.context : primary_of(driver, found.device);
  const std::uint64_t now = id_of(driver, context);
  auto& [id, made] = all[context];
  if (made.empty() || id != now) {
    made.emplace_back(new CudaMemory(driver, context, found.device, options));
    id = now;
  }
  return *made.back();
}

CudaMemory::CudaMemory(const Driver& driver, ContextHandle context, Ordinal device,
                       const Options& options)
    : context_(driver, context, device), options_(options), kernels_(context_, gate_, options_) {}

std::byte* CudaMemory::allocate(std::size_t bytes) {
  const ScopedContext scope = context_.scope();
  DeviceAllocation made(context_.driver(), bytes);
  auto* const address = reinterpret_cast<std::byte*>(made.get());
  const std::lock_guard lock(mutex_);
  allocations_[address] = std::move(made);
  return address;
}

void CudaMemory::release(std::byte* address) noexcept {
  DeviceAllocation released;  // destroyed after the lock is released
  const std::lock_guard lock(mutex_);
  const auto found = allocations_.find(address);
  if (found == allocations_.end()) return;
  released = std::move(found->second);
  allocations_.erase(found);
}

bool CudaMemory::prepares_later(const void* input, std::size_t bytes, const Reduction* reduction) {
  if (!orders_.has_enqueued_work()) return false;
  if (reduction != nullptr) {
    const auto [op, dtype, on_host] = *reduction;
    const bool has_kernels = Kernels::why_not(op, dtype).empty();
    const Kernels& kernels = kernels_.kernels();
    if (has_kernels && !kernels.has(op, dtype) && !kernels.has_refused(op, dtype)) return true;
  }
  return !exported_.find(input, bytes) && programs_.is_new({input, bytes});
}

std::unique_ptr<Workspace> CudaMemory::make_workspace(std::size_t rank, std::size_t ranks,
                                                      std::size_t bytes, std::string& why) {
  std::unique_ptr<Workspace> made;
  try {
    gate_.while_none_is_open([&] {
      const ScopedContext scope = context_.scope();
      made = std::make_unique<CudaWorkspace>(parts_, rank, ranks, bytes);
    });
  } catch (const DriverError& error) {
    why = error.what();
    tell_once("calls on arrays of " + name() + " go through host memory, which is slow: " + why);
  }
  return made;
}

CollectiveLibrary* CudaMemory::collectives(std::string_view plan, std::string& why) {
  const std::lock_guard lock(mutex_);
  if (const auto known = collectives_.find(plan); known != collectives_.end()) {
    return known->second.get();
  }
  try {
    auto made = make_library(plan, parts_, options_);
    return collectives_.emplace(plan, std::move(made)).first->second.get();
  } catch (const DeviceError& error) {
    why = error.what();
    return nullptr;
  }
}

std::shared_ptr<StreamOrder> CudaMemory::open_direct_order(std::uint64_t stream) {
  const ScopedContext scope = context_.scope();
  return device::open_direct_order(context_, gate_, orders_, streams_, stream);
}

}  // namespace gradred::device
