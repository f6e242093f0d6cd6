// Calls in the form that a node group carries out, and why other plans cannot serve some calls.
#pragma once

#include <cstddef>
#include <string_view>
#include <vector>

#include "comm/call.h"
#include "node/group.h"

namespace gradred {

// MPI counts are ints: longer vectors go in pieces, which elementwise operations allow.
inline constexpr std::size_t kLargestMpiCount = std::size_t{1} << 30;

// Why start() leaves calls to the MPI.
inline constexpr const char* kLeftToMpi =
    "until a blocking call on the communicator has set up what gradred needs, or where the ranks "
    "let no thread drive, the MPI carries out non-blocking calls";

// Why a communicator has no messages of gradred's own.
inline constexpr const char* kNoneLeft =
    "the MPI has no communicators left for gradred to use, and without one of its own it cannot "
    "carry out the plan that is asked for: free communicators that are not used any more";

// Why a communicator that shrink() or connect() has made cannot do what needs the MPI.
inline constexpr std::string_view kMemoryOnly =
    "this communicator has shared memory only, and the MPI knows nothing of it. Use types and "
    "operations of gradred's own, and no plan but 'node'.";

// The call as the ranks of a host carry it out, without factors.
NodeCall node_call(const Call& call);

// The input times the factor, which is put into `storage`.
const void* scaled_input(const Call& call, int size, std::vector<std::byte>& storage);

}  // namespace gradred
