// How long it takes to learn what kind of memory an address is: by the cache, and by the driver's
// own functions.
#pragma once

#include "device/driver.h"

namespace gradred::device {

struct PointerTimes {   // nanoseconds for one call, medians of blocks in turn
  double cache = 0;     // a hit, or all questions where nothing is kept: of host memory
  double plural = 0;    // cuPointerGetAttributes, of the kind alone
  double singular = 0;  // cuPointerGetAttribute; below zero: the driver has none
  bool well = false;    // the cache, asked again and again, has said what the driver says
};

// Blocks. `calls` in each of nine blocks.
PointerTimes time_lookups(const Driver& driver, Address address, unsigned calls);

}  // namespace gradred::device
