// The first message of a communicator: what each rank wants and has. If the offers fit together, it
// is the only message, and costs one gather.
#pragma once

#include <cstdint>

#include "comm/set_up/sharing.h"
#include "comm/set_up/tag_range.h"

namespace gradred {

// What must be the same on all ranks. Rank 0's values hold; threads_drive and starts_on_node hold
// only if all ranks have them.
struct SettingsOffer {
  std::uint64_t slices = 0, key = 0, profile = 0, deterministic = 0, tunes = 0;
  std::uint64_t one_order = 0, threads_drive = 0, starts_on_node = 0;
  char plan[64] = {}, device_plan[64] = {};
};

struct Offer {
  static constexpr std::uint64_t kBegins = 0x6772616472656431;  // "gradred1"

  std::uint64_t begins = kBegins;  // shows whether all ranks make this call
  SettingsOffer settings;
  TagRangeOffer tag_range;
  MemoryOffer memory;
};

}  // namespace gradred
