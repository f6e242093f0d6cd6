// The constants of the three MPI families: the only place that knows their values.
#pragma once

#include <span>

#include "mpi/mpi.h"

namespace gradred::mpi {

template <class Value>
struct Named {
  Handle handle;
  Value value;
};

// How to find a symbol of the loaded library; nullptr where it has none.
using Lookup = void* (*)(void* library, const char* symbol);

struct FamilyTables {
  Constants constants;
  std::span<const Named<DType>> types;
  std::span<const Named<Op>> ops;
};

// Which family `library` belongs to, and its tables. Open MPI's constants are addresses of its
// symbols, so that its tables are filled here, once.
Family find_family(void* library, Lookup lookup);
FamilyTables tables_of(Family family, void* library, Lookup lookup);

}  // namespace gradred::mpi
