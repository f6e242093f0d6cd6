// Functions of a program's own operations (base/user_ops.h) for devices.
#pragma once

#include <string>

#include "base/types.h"

namespace gradred::device {

struct UserFunction {
  // PTX of `T gradred_user_op(T, T)`, C's, for any device that gradred serves; T is the element
  // type, of floats of 16 and 8 bits float. Empty: there is none.
  std::string code{};
  std::string why_not{};  // then
};

// As long as the process; of each operation and type the first one counts.
void add_user_function(Op op, DType dtype, UserFunction function);
// Null: nobody has asked for it.
const UserFunction* find_user_function(Op op, DType dtype);

}  // namespace gradred::device
