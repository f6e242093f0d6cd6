// Chakra execution traces (mlcommons/chakra, chakra/schema/protobuf/et_def.proto): messages of
// Protocol Buffers, each behind its length.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/signature.h"

namespace gradred {

struct ChakraOperation {
  Signature signature;
  std::uint64_t start_ns, end_ns;
  const char* path;
};

// The trace of one rank. `operations` have started in this order, and ended well.
// A node follows those that had ended before it began. The program's own work is a
// node wherever no operation is in flight.
std::string chakra_of(const std::vector<ChakraOperation>& operations, int rank);

}  // namespace gradred
