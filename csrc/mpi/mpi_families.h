// The constants of the three MPI families. No other file knows their values.
#pragma once

#include <span>

#include "base/types.h"
#include "mpi/mpi_table.h"

namespace gradred::mpi {

template <class Value>
struct Named {
  Handle handle;
  Value value;
};

// Finds a symbol of the loaded library. Returns nullptr if the library lacks it.
using Lookup = void* (*)(void* library, const char* symbol);

struct FamilyTables {
  Constants constants;
  std::span<const Named<DType>> types;
  std::span<const Named<Op>> ops;
  // Of Fortran, as long as these if the MPI was built for a compiler with the usual lengths.
  std::span<const Named<DType>> fortran_types;
};

// find_family() returns the family of `library`, tables_of() its tables. Open MPI's constants are
// addresses of its symbols, so its tables are filled by the first call.
Family find_family(void* library, Lookup lookup);
FamilyTables tables_of(Family family, void* library, Lookup lookup);

}  // namespace gradred::mpi
