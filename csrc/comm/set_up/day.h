// Dates, for files that are stored.
#pragma once

#include <string>

namespace gradred {

std::string today();  // "2026-11-25", in UTC

}  // namespace gradred
