#include "preload/fortran.h"

#include <dlfcn.h>

#include <array>
#include <string>

namespace gradred::preload {
namespace {

// Open MPI's names of a constant, by compiler: each has its own way to make a symbol of a name.
void* open_mpis(const std::string& name, const std::string& in_capitals) {
  for (const std::string& symbol : {name + "_", name, name + "__", in_capitals}) {
    if (void* const found = dlsym(RTLD_DEFAULT, symbol.c_str())) return found;
  }
  return nullptr;
}

// MPICH's family has variables with the addresses, which MPI_Init of Fortran sets.
void* mpichs(const char* name) {
  void** const variable = static_cast<void**>(dlsym(RTLD_DEFAULT, name));
  return variable != nullptr ? *variable : nullptr;
}

struct Constants {
  void* in_place;
  void* bottom;
};
const Constants& constants() {
  static const Constants found =
      mpi::get().family == mpi::Family::kOpenMpi
          ? Constants{open_mpis("mpi_fortran_in_place", "MPI_FORTRAN_IN_PLACE"),
                      open_mpis("mpi_fortran_bottom", "MPI_FORTRAN_BOTTOM")}
          : Constants{mpichs("MPIR_F_MPI_IN_PLACE"), mpichs("MPIR_F_MPI_BOTTOM")};
  return found;
}

// A function of the MPI that converts a handle. In MPICH's family both are the same number.
template <class Function>
Function converter(const char* open_mpis_name, const char* name_of_abi) {
  const mpi::Family family = mpi::get().family;
  if (family == mpi::Family::kMpich) return nullptr;
  const char* const name = family == mpi::Family::kOpenMpi ? open_mpis_name : name_of_abi;
  return reinterpret_cast<Function>(find_below(name, nullptr));
}

using ToC = mpi::Handle (*)(int);

mpi::Handle converted(ToC function, int handle) {
  return function != nullptr ? function(handle) : static_cast<unsigned>(handle);
}

}  // namespace

void* of_c(const void* address) {
  const Constants& known = constants();
  if (address == known.in_place && address != nullptr) return mpi::get().is.in_place;
  if (address == known.bottom) return nullptr;  // MPI_BOTTOM of C, in all families
  return const_cast<void*>(address);
}

mpi::Handle comm_of_c(int comm) {
  static const auto function = converter<ToC>("PMPI_Comm_f2c", "PMPI_Comm_fromint");
  return converted(function, comm);
}

mpi::Handle type_of_c(int type) {
  static const auto function = converter<ToC>("PMPI_Type_f2c", "PMPI_Type_fromint");
  return converted(function, type);
}

mpi::Handle op_of_c(int op) {
  static const auto function = converter<ToC>("PMPI_Op_f2c", "PMPI_Op_fromint");
  return converted(function, op);
}

int request_of_fortran(mpi::Handle request) {
  using ToFortran = int (*)(mpi::Handle);
  static const auto function = converter<ToFortran>("PMPI_Request_c2f", "PMPI_Request_toint");
  return function != nullptr ? function(request) : static_cast<int>(request);
}

}  // namespace gradred::preload
