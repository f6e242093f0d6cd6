// What operations in flight work on, after the program has let their requests go.
#pragma once

#include <Python.h>

#include <memory>

#include "comm/started.h"

namespace gradred {

// With the GIL. Takes the reference, and gives it back some time after the operation has ended.
void keep_until_ended(std::shared_ptr<StartedOperation> operation, PyObject* held);
// Lets go of what has ended; looks at some of them only.
void let_ended_go();

}  // namespace gradred
