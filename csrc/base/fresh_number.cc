#include "base/fresh_number.h"

#include <pthread.h>

#include <atomic>

#include "base/random.h"

namespace gradred {
namespace {

std::atomic<std::uint64_t> state{0};  // 0: not drawn yet

// A forked child must not get the numbers of its parent.
void draw_again_in_children() {
  static const int registered =
      pthread_atfork(nullptr, nullptr, [] { state.store(0, std::memory_order_relaxed); });
  static_cast<void>(registered);
}

// The output function of SplitMix64, which gives each input another output.
std::uint64_t scattered(std::uint64_t number) {
  number = (number ^ number >> 30) * 0xBF58476D1CE4E5B9;
  number = (number ^ number >> 27) * 0x94D049BB133111EB;
  return number ^ number >> 31;
}

}  // namespace

std::uint64_t fresh_number() {
  constexpr std::uint64_t kStep = 0x9E3779B97F4A7C15;  // odd, so it comes to every number
  std::uint64_t none = 0;
  if (state.load(std::memory_order_relaxed) == 0) {
    draw_again_in_children();
    state.compare_exchange_strong(none, random_number(), std::memory_order_relaxed);
  }
  return scattered(state.fetch_add(kStep, std::memory_order_relaxed)) | 1;
}

}  // namespace gradred
