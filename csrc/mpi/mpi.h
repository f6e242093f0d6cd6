// The MPI library of this process, found at run time, so that one binary serves every MPI.
//
// gradred uses neither mpi.h nor libmpi at link time. Handles travel as integers that are wide
// enough for every family; `normalise` masks the bits that a family does not use. Constants come
// from one table per family (families.cc).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>

#include "base/types.h"
#include "mpi/mpi_table.h"

namespace gradred::mpi {

struct Mpi {
  Family family;
  Functions call;
  Constants is;

  // Fills in the empty status of MPI, that of a request that received nothing.
  void make_empty(void* status) const {
    call.Status_set_elements(status, is.byte_type, 0);
    call.Status_set_cancelled(status, 0);
    const std::array<int, 3> source_tag_error = {is.any_source, is.any_tag, 0};
    std::memcpy(static_cast<std::byte*>(status) + is.status_source, source_tag_error.data(),
                sizeof source_tag_error);
  }
  Handle normalise(Handle handle) const {
    return is.handle_bytes == 4 ? handle & 0xffffffffU : handle;
  }
  // Returns the element type or operation of a handle, or nothing if gradred leaves it to the MPI.
  std::optional<DType> dtype(Handle type) const;
  std::optional<Op> op(Handle op) const;
  // The same for types of Fortran, if its compiler has the usual lengths: MPI_Type_size shows that.
  std::optional<DType> fortran_dtype(Handle type) const;
  // The reverse. Returns nothing for types and operations that MPI lacks.
  std::optional<Handle> handle_of(DType dtype) const;
  std::optional<Handle> handle_of(Op op) const;
  // A key for attributes of communicators that duplicates do not inherit: a duplicate that the
  // program makes is another communicator. `on_delete` receives the attribute's value third.
  int new_attribute(int (*on_delete)(Handle, int, void*, void*)) const;
  // Throws TransportError with the MPI's error text unless `code` is MPI_SUCCESS.
  void check(int code, const char* what) const;
  std::string version() const;
};

// Returns the table after load(). Throws UsageError before.
const Mpi& get();
bool loaded();
// Whether the program has initialized MPI, even if it has finalized it since. Ranks without MPI
// need not.
bool initialized();
int thread_level();  // that the MPI provides
// Fills the table from `library` (a dlopen handle) or from a library on which it depends.
void load(void* library);
// For tests, which change it: the table. Without an MPI: the standard ABI's, without functions.
Mpi& for_tests();

}  // namespace gradred::mpi
