// Plan "copy": for one rank, which has nobody to exchange data with.
#pragma once

#include "calls/family.h"

namespace gradred {

const Family& copy_family();

}  // namespace gradred
