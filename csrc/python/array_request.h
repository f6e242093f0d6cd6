// Base class of gradred.ArrayRequest, for a low overhead of starting and waiting.
#pragma once

#include <pybind11/pybind11.h>

#include <memory>

#include "engine/started.h"

namespace gradred {

// Makes the request of a started call on arrays, or of one that has ended if `operation` is
// nullptr. It keeps `x` and the result alive while the operation is in flight. Takes the result.
pybind11::object make_array_request(std::shared_ptr<StartedOperation> operation, pybind11::handle x,
                                    pybind11::object result);

}  // namespace gradred
