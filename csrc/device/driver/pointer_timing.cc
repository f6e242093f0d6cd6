#include "device/driver/pointer_timing.h"

#include <algorithm>
#include <array>

#include "base/clock.h"
#include "device/driver/pointer_cache.h"

namespace gradred::device {
namespace {

constexpr std::size_t kBlocks = 9;
using Blocks = std::array<double, kBlocks>;

double median_of(Blocks blocks) {
  std::ranges::sort(blocks);
  return blocks[kBlocks / 2];
}

template <class Call>
double block_of(unsigned calls, const Call& call) {
  const std::uint64_t begin = now_ns();
  for (unsigned i = 0; i < calls; ++i) call();
  return static_cast<double>(now_ns() - begin) / calls;
}

}  // namespace

PointerTimes time_lookups(const Driver& driver, Address address, unsigned calls) {
  const auto* const pointer = reinterpret_cast<const void*>(address);
  const Functions& functions = driver.call;
  constexpr int kWanted[] = {kMemoryType};
  unsigned type = 0;
  void* values[] = {&type};
  PointerCache cache(driver), audited(driver);
  PointerTimes times;
  times.well = cache.find(pointer) == ask(driver, address);
  Blocks by_cache{}, by_plural{}, by_singular{};
  for (std::size_t i = 0; i < kBlocks; ++i) {
    by_cache[i] = block_of(calls, [&] { cache.find(pointer); });
    by_plural[i] =
        block_of(calls, [&] { functions.PointerGetAttributes(1, kWanted, values, address); });
    if (functions.PointerGetAttribute == nullptr) continue;
    by_singular[i] =
        block_of(calls, [&] { functions.PointerGetAttribute(&type, kMemoryType, address); });
  }
  for (unsigned i = 0; i < calls; ++i) audited.find(pointer, true);
  times.well = times.well && audited.counts().mismatches == 0;
  times.cache = median_of(by_cache);
  times.plural = median_of(by_plural);
  times.singular = functions.PointerGetAttribute == nullptr ? -1 : median_of(by_singular);
  return times;
}

}  // namespace gradred::device
