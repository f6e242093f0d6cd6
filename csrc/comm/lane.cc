#include "comm/lane.h"

#include <algorithm>
#include <bit>

namespace gradred {

LaneAgreement::LaneAgreement(const SetUpCalls& calls, std::vector<int> group)
    : group_(std::move(group)),
      leads_(calls.rank() == 0),
      known_(Registry::get().duplicates_over(group_)) {
  Registry& registry = Registry::get();
  offer_numbers(registry.first_window(group_));
  if (leads_) offer_.new_serial = registry.new_serial();
  for (std::size_t i = 0; i < std::min(known_.size(), LaneOffer::kMost); ++i) {
    offer_.serials[i] = known_[i]->serial;
  }
}

// Another thread of the leader may offer numbers for the same group: each reserves its own.
void LaneAgreement::offer_numbers(std::uint64_t window) {
  Registry& registry = Registry::get();
  give_back();
  offer_.numbers = {window, leads_ ? registry.reserve_numbers(group_, window)
                                   : registry.free_numbers(group_, window)};
}

void LaneAgreement::give_back() {
  if (!leads_) return;
  NumberOffer& numbers = offer_.numbers;
  for (; numbers.free != 0; numbers.free &= numbers.free - 1) {
    const int bit = std::countr_zero(numbers.free);
    Registry::get().give_back_id(group_, static_cast<int>(numbers.window) * 64 + bit);
  }
}

std::unique_ptr<Lane> LaneAgreement::settle(SetUpCalls& calls, std::span<const LaneOffer> all) {
  std::vector<NumberOffer> numbers;
  for (const LaneOffer& offer : all) numbers.push_back(offer.numbers);
  const int id = number(calls, std::move(numbers));
  if (id < 0) return nullptr;
  auto lane = std::make_unique<Lane>();
  lane->id = id;
  lane->group = group_;
  lane->keeps_id = true;
  lane->duplicate = common(all);
  if (lane->duplicate == nullptr) {
    lane->duplicate = Registry::get().make_duplicate(calls, group_, all.front().new_serial);
  }
  return lane->duplicate ? std::move(lane) : nullptr;
}

// The lowest that is free on all ranks, which this one keeps; -1: there is none.
int LaneAgreement::number(SetUpCalls& calls, std::vector<NumberOffer> all) {
  for (;;) {
    std::uint64_t window = 0, free = ~std::uint64_t{0};
    bool same = true;
    for (const NumberOffer& offer : all) {
      same &= offer.window == all.front().window;
      window = std::max(window, offer.window);
      free &= offer.free;
    }
    if (same && free != 0) {
      const int bit = std::countr_zero(free);
      const int id = static_cast<int>(window) * 64 + bit;
      if (leads_) offer_.numbers.free &= ~(std::uint64_t{1} << bit);
      Registry::get().keep_id(group_, id);
      return id;
    }
    if (same) ++window;
    if (window >= Registry::get().number_windows()) return -1;
    offer_numbers(window);
    const NumberOffer mine = offer_.numbers;
    calls.allgather(&mine, sizeof mine, all.data());
  }
}

// The first of the leader's that all ranks have.
std::shared_ptr<Duplicate> LaneAgreement::common(std::span<const LaneOffer> all) const {
  for (const std::uint64_t serial : all.front().serials) {
    const bool on_all = std::ranges::all_of(all, [&](const LaneOffer& offer) {
      return std::ranges::find(offer.serials, serial) != offer.serials.end();
    });
    if (serial == 0 || !on_all) continue;
    return *std::ranges::find(known_, serial, [](const auto& one) { return one->serial; });
  }
  return nullptr;
}

}  // namespace gradred
