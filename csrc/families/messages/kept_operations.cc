#include "families/messages/kept_operations.h"

#include "families/messages/comm_operation.h"

namespace gradred {
namespace {

constexpr std::size_t kMost = 64;

}  // namespace

std::shared_ptr<CommOperation> KeptOperations::find(const Call& call) {
  for (auto one = all_.begin(); one != all_.end(); ++one) {
    if (!(*one)->serves(call) || !(*one)->is_free()) continue;
    all_.splice(all_.begin(), all_, one);
    return all_.front();
  }
  return nullptr;
}

// Drops failed operations, and the least recently used one if there are too many.
void KeptOperations::add(std::shared_ptr<CommOperation> operation) {
  all_.remove_if([](const auto& one) { return one->ended() && one->failed(); });
  all_.push_front(std::move(operation));
  if (all_.size() > kMost) all_.pop_back();
}

}  // namespace gradred
