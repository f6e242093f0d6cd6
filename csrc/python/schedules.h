// What bindings of schedules share.
#pragma once

#include <pybind11/pybind11.h>

#include "schedule/algorithms.h"

namespace gradred {

// The parameters of an algorithm from keywords. Throws UsageError for one that it does not take and
// for a value of another type.
Parameters parameters_from(const Algorithm& algorithm, const pybind11::dict& given);

}  // namespace gradred
