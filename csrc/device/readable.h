// Whether the host may read memory whose address a program has passed.
#pragma once

#include <cstddef>

namespace gradred::device {

// Whether a library of CUDA is in the process; without one no memory is a device's.
bool may_have_driver();

// Checks the first and the last word, by the kernel; asks no driver.
bool is_readable(const void* address, std::size_t bytes);

// A quicker version for the path of each call. Unless a device's driver may be in the process, it
// keeps for each page that the answer was yes, so memory that the program has unmapped since may
// count as readable.
bool is_found_readable(const void* address, std::size_t bytes);

}  // namespace gradred::device
