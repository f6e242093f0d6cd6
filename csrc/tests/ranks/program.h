// A rank in C++ alone, for tests without Python. The MPI library is chosen when the program runs.
#pragma once

#include <dlfcn.h>

#include <stdexcept>
#include <string>

#include "comm/communicator.h"
#include "runtime/rank_process.h"

namespace gradred::testing {

inline void expect(bool condition, const std::string& what) {
  if (!condition) throw std::runtime_error(what);
}

// MPI functions that the program needs in addition to those that gradred uses.
class Library {
 public:
  explicit Library(const char* path) : handle_(dlopen(path, RTLD_NOW | RTLD_GLOBAL)) {
    expect(handle_ != nullptr, std::string("dlopen: ") + (handle_ == nullptr ? dlerror() : ""));
  }
  void* handle() const { return handle_; }

  template <class... Arguments>
  void call(const char* function, Arguments... arguments) const {
    using Function = int (*)(Arguments...);
    const auto found = reinterpret_cast<Function>(dlsym(handle_, function));
    expect(found != nullptr, std::string("the MPI has no ") + function);
    expect(found(arguments...) == 0, std::string(function) + " failed");
  }

  mpi::Handle duplicate(mpi::Handle comm) const {
    mpi::Handle copy = 0;
    call("MPI_Comm_dup", comm, &copy);
    return mpi::get().normalise(copy);
  }
  // Like Comm.Free() of the Python extension.
  void free(mpi::Handle comm) const {
    PlainWait hook;
    Communicator::of(comm)->on_mpi().finish(hook);
    call("MPI_Comm_free", &comm);
    Registry::get().reap();
  }

 private:
  void* handle_;
};

void make_all_calls(const Library& mpi);  // calls.cc
void make_calls_on_devices(const Library& mpi);
void make_named_operations(const Library& mpi);  // named.cc
void send_messages(const Library& mpi);          // messages.cc
void lose_a_rank(const Library& mpi);            // ends.cc: rank 1 kills itself
void leave_early(const Library& mpi);            // rank 1 ends by an error
void come_late(const Library& mpi);              // rank 1, beyond GRADRED_TIMEOUT
void lose_a_rank_on_mpi(Kind kind);              // the same two with plan "mpi", once all ranks
void come_late_on_mpi(Kind kind);                // have agreed on the call
void fork_a_child(const Library& mpi);
void count_steady_calls(const Library& mpi);  // steady.cc: allocations and locks of repeated calls

}  // namespace gradred::testing
