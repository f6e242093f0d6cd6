#include "node/memory/enqueued_calls.h"

#include <sys/prctl.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#include "memory/workspace.h"

namespace gradred {
namespace {

// The device waits meanwhile, so naps are short where each rank has a core.
constexpr std::chrono::microseconds kNap(20), kNapOnSharedCore(200);

struct Registered {
  std::mutex mutex;
  std::condition_variable added;
  std::vector<EnqueuedCall*> rests;
  std::thread thread;
};

Registered& registered() {
  static auto& made = *new Registered;  // never freed, since the thread runs until the process ends
  return made;
}

void pass_on() {
  prctl(PR_SET_TIMERSLACK, 1000);  // the kernel's default would make the naps four times as long
  Registered& given = registered();
  std::unique_lock lock(given.mutex);
  while (true) {
    given.added.wait(lock, [&] { return !given.rests.empty(); });
    const bool has_core =
        std::ranges::all_of(given.rests, [](const EnqueuedCall* one) { return one->spins(); });
    std::erase_if(given.rests, [](EnqueuedCall* one) { return one->pass_on(); });
    given.added.wait_for(lock, has_core ? kNap : kNapOnSharedCore);
  }
}

}  // namespace

void EnqueuedCalls::add(EnqueuedCall& rest) {
  const std::lock_guard lock(registered().mutex);
  if (!registered().thread.joinable()) registered().thread = std::thread(pass_on);
  registered().rests.push_back(&rest);
  registered().added.notify_one();
}

void EnqueuedCalls::remove(EnqueuedCall& rest) noexcept {
  const std::lock_guard lock(registered().mutex);
  std::erase(registered().rests, &rest);
}

}  // namespace gradred
