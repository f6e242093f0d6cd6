// Device functions of a program's own operations (base/user_ops.h).
#pragma once

#include <string>

#include "base/types.h"

namespace gradred::device {

struct UserFunction {
  // PTX of the C function `T gradred_user_op(T, T)` for any device that gradred serves. T is the
  // element type; for floats of 16 and 8 bits it is float. Empty if there is none.
  std::string code{};
  std::string why_not{};  // the reason if there is none
};

// Adds a function for the life of the process. For each operation and type, only the first one
// counts.
void add_user_function(Op op, DType dtype, UserFunction function);
// Returns nullptr if none has been added.
const UserFunction* find_user_function(Op op, DType dtype);

}  // namespace gradred::device
