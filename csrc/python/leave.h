// The end of a process whose peers are lost or stuck.
#pragma once

#include <cstdint>
#include <string>

namespace gradred {

// From now on say_farewell() decides whether this process calls MPI_Finalize, which would wait for
// peers that never come. Where it must not, the process ends without the destructors of the MPI's
// libraries, too, and with the status it would have had. `mpi4py` is the file of mpi4py's extension
// module, which calls MPI_Finalize at the very end of Python. False where no such call is found.
bool take_over_finalize(const std::string& mpi4py);

// Without the GIL: gives up what is in flight, and calls its callbacks.
void finish_operations() noexcept;

// The pipe to this rank's keeper, by which it hears of MPI_Finalize; -1: none.
void use_voice(int pipe, std::uint64_t inode);

}  // namespace gradred
