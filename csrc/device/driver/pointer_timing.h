// Measures how long it takes to find out what kind of memory an address is, by the cache and by the
// driver's functions.
#pragma once

#include "device/driver/driver.h"

namespace gradred::device {

struct PointerTimes {   // nanoseconds per call; medians of alternating blocks of calls
  double cache = 0;     // a hit; for host memory, which is not cached, all questions
  double plural = 0;    // cuPointerGetAttributes for the memory type alone
  double singular = 0;  // cuPointerGetAttribute; negative if the driver lacks it
  bool well = false;    // all answers of the cache were the same as the driver's
};

// Blocking. Makes `calls` calls in each of nine blocks.
PointerTimes time_lookups(const Driver& driver, Address address, unsigned calls);

}  // namespace gradred::device
