// How a call says that its input is where its result goes.
#pragma once

namespace gradred {

// Where an input address is due: the input is where the result goes. No array lies there, while 0
// is what arrays without memory give as their address.
inline constexpr char kInPlaceMark = 0;
inline constexpr const void* kInPlace = &kInPlaceMark;

}  // namespace gradred
