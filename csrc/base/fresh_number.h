// Numbers that identify things, as random.h makes them, for what programs make by the thousand: the
// processor's random numbers take a microsecond each. Whoever knows one of these can guess the
// next.
#pragma once

#include <cstdint>

namespace gradred {

std::uint64_t fresh_number();

}  // namespace gradred
