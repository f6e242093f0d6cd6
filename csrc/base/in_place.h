// The mark by which a call requests in-place operation.
#pragma once

namespace gradred {

// Passed as the input address if the input is in the result buffer. No array has this address. The
// address 0 would be ambiguous, since arrays without memory have it.
inline constexpr char kInPlaceMark = 0;
inline constexpr const void* kInPlace = &kInPlaceMark;

}  // namespace gradred
