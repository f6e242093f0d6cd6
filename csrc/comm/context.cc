#include "comm/context.h"

#include <algorithm>

#include "comm/communicator.h"

namespace gradred {

Context& Context::get() {
  static auto* context = new Context;
  return *context;
}

Settings& settings() { return Context::get().settings; }
Engine& engine() { return Context::get().engine; }
Registry& Registry::get() { return Context::get().registry; }

void write_trace() {
  const Context& context = Context::get();
  if (context.trace) context.trace->write(context.settings.trace);
}

void KnownCommunicators::add(const std::shared_ptr<Communicator>& made) {
  all_.push_back(made);
  if (all_.size() < checked_at_) return;
  forget_ended();
  checked_at_ = std::max<std::size_t>(64, 2 * all_.size());
}

std::vector<std::shared_ptr<Communicator>> KnownCommunicators::alive() {
  forget_ended();
  std::vector<std::shared_ptr<Communicator>> found;
  for (const auto& one : all_) {
    if (auto communicator = one.lock(); communicator && !communicator->liveness().freed()) {
      found.push_back(std::move(communicator));
    }
  }
  return found;
}

void KnownCommunicators::forget_ended() {
  all_.remove_if([](const auto& one) { return one.expired(); });
}

}  // namespace gradred
