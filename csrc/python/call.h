// A call as Python holds it.
#pragma once

#include <string>

#include "comm/call.h"

namespace gradred {

struct PyCall {  // what it points to must outlive it
  Call call;
  std::string plan;
};

}  // namespace gradred
