#include "comm/set_up/tag_range.h"

#include <algorithm>
#include <bit>

namespace gradred {

TagRangeAgreement::TagRangeAgreement(const SetUpCalls& calls, std::vector<int> group)
    : group_(std::move(group)),
      leads_(calls.rank() == 0),
      known_(Registry::get().duplicates_over(group_)) {
  Registry& registry = Registry::get();
  offer_numbers(registry.first_window(group_));
  if (leads_) offer_.new_serial = registry.new_serial();
  for (std::size_t i = 0; i < std::min(known_.size(), TagRangeOffer::kMost); ++i) {
    offer_.serials[i] = known_[i]->serial;
  }
}

// Another thread of rank 0 may offer numbers for the same group, so each reserves its own.
void TagRangeAgreement::offer_numbers(std::uint64_t window) {
  Registry& registry = Registry::get();
  give_back();
  offer_.numbers = {window, leads_ ? registry.reserve_numbers(group_, window)
                                   : registry.free_numbers(group_, window)};
}

void TagRangeAgreement::give_back() {
  if (!leads_) return;
  NumberOffer& numbers = offer_.numbers;
  for (; numbers.free != 0; numbers.free &= numbers.free - 1) {
    const int bit = std::countr_zero(numbers.free);
    Registry::get().give_back_id(group_, static_cast<int>(numbers.window) * 64 + bit);
  }
}

std::unique_ptr<TagRange> TagRangeAgreement::settle(SetUpCalls& calls,
                                                    std::span<const TagRangeOffer> all) {
  std::vector<NumberOffer> numbers;
  for (const TagRangeOffer& offer : all) numbers.push_back(offer.numbers);
  const int id = number(calls, std::move(numbers));
  if (id < 0) return nullptr;
  auto tag_range = std::make_unique<TagRange>();
  tag_range->id = id;
  tag_range->group = group_;
  tag_range->keeps_id = true;
  tag_range->duplicate = common(all);
  if (tag_range->duplicate == nullptr) {
    const mpi::Handle made = calls.duplicate();
    if (made == 0) return nullptr;
    tag_range->duplicate = Registry::get().add_duplicate(made, group_, all.front().new_serial);
  }
  return tag_range;
}

// The lowest number that is free on all ranks. This rank marks it as used. -1: there is none.
int TagRangeAgreement::number(SetUpCalls& calls, std::vector<NumberOffer> all) {
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

// The first duplicate of rank 0 that all ranks have.
std::shared_ptr<Duplicate> TagRangeAgreement::common(std::span<const TagRangeOffer> all) const {
  for (const std::uint64_t serial : all.front().serials) {
    const bool on_all = std::ranges::all_of(all, [&](const TagRangeOffer& offer) {
      return std::ranges::find(offer.serials, serial) != offer.serials.end();
    });
    if (serial == 0 || !on_all) continue;
    return *std::ranges::find(known_, serial, [](const auto& one) { return one->serial; });
  }
  return nullptr;
}

}  // namespace gradred
