// Keeps objects alive that operations in flight use, after the program has dropped the requests.
#pragma once

#include <Python.h>

#include <memory>

#include "engine/started.h"

namespace gradred {

// Takes the reference `held`, and releases it some time after the operation has ended. The caller
// holds the GIL.
void keep_until_ended(std::shared_ptr<StartedOperation> operation, PyObject* held);
// Releases the objects of operations that have ended. Passes over at most two that have not.
void let_ended_go();

}  // namespace gradred
