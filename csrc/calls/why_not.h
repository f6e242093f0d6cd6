// Texts of errors and reports: why gradred, or one of its plans, cannot carry out some calls.
#pragma once

#include <string_view>

namespace gradred {

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

}  // namespace gradred
