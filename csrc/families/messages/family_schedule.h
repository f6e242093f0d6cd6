// Plans over messages: every algorithm of schedule/algorithms.h, and schedules of the caller's own.
#pragma once

#include "calls/family.h"

namespace gradred {

// The most slices of a vector that moves by messages alone. Long messages are cut into pieces
// anyway, and ranks that share cores lose time with more slices.
inline constexpr std::size_t kMostSlices = 2;

const Family& schedule_family();

}  // namespace gradred
