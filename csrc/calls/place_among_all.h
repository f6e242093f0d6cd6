// The rank of this process among all processes of the program, and their number.
#pragma once

namespace gradred {

struct PlaceAmongAll {
  int rank, size;
};

// They come from the MPI, or from RANK and WORLD_SIZE, which torchrun sets; else they are `rank`
// and `size`, those of a communicator.
PlaceAmongAll place_among_all(int rank, int size);

}  // namespace gradred
