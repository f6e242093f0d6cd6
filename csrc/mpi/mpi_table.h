// The table of an MPI: its handles, functions and constants.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/kinds.h"

namespace gradred::mpi {

using Handle = std::uintptr_t;  // MPI_Comm, MPI_Datatype, MPI_Op, MPI_Request, MPI_Group

enum class Family : std::uint8_t { kMpich, kOpenMpi, kStandardAbi };
std::string_view name_of(Family family);

// Signatures are as in the MPI standard, with handles as integers. A variable that receives a
// handle must be zeroed first.
struct Functions {
  int (*Init_thread)(int* argc, char*** argv, int required, int* provided);
  int (*Initialized)(int* flag);
  int (*Finalized)(int* flag);
  int (*Finalize)();
  int (*Query_thread)(int* provided);
  int (*Get_library_version)(char* version, int* length);
  int (*Error_string)(int code, char* text, int* length);
  int (*Comm_rank)(Handle comm, int* rank);
  int (*Comm_size)(Handle comm, int* size);
  int (*Comm_idup)(Handle comm, Handle* duplicate, Handle* request);
  int (*Comm_free)(Handle* comm);
  int (*Comm_group)(Handle comm, Handle* group);
  int (*Comm_get_parent)(Handle* parent);
  int (*Comm_test_inter)(Handle comm, int* flag);
  int (*Comm_set_errhandler)(Handle comm, Handle handler);
  int (*Comm_get_errhandler)(Handle comm, Handle* handler);
  int (*Errhandler_free)(Handle* handler);
  int (*Comm_create_keyval)(int (*copy)(Handle, int, void*, void*, void*, int*),
                            int (*remove)(Handle, int, void*, void*), int* keyval, void* extra);
  int (*Comm_set_attr)(Handle comm, int keyval, void* value);
  int (*Comm_get_attr)(Handle comm, int keyval, void* value, int* flag);
  int (*Group_size)(Handle group, int* size);
  int (*Group_translate_ranks)(Handle a, int n, const int* ranks, Handle b, int* translated);
  int (*Group_free)(Handle* group);
  int (*Isend)(const void* data, int count, Handle type, int peer, int tag, Handle comm,
               Handle* request);
  int (*Irecv)(void* data, int count, Handle type, int peer, int tag, Handle comm, Handle* request);
  int (*Issend)(const void* data, int count, Handle type, int peer, int tag, Handle comm,
                Handle* request);
  int (*Testsome)(int count, Handle* requests, int* done, int* which, void* statuses);
  int (*Testall)(int count, Handle* requests, int* flag, void* statuses);
  int (*Test)(Handle* request, int* flag, void* status);
  int (*Cancel)(Handle* request);
  int (*Request_free)(Handle* request);
  int (*Iprobe)(int peer, int tag, Handle comm, int* flag, void* status);
  int (*Get_count)(const void* status, Handle type, int* count);
  int (*Allreduce)(const void* send, void* recv, int count, Handle type, Handle op, Handle comm);
  int (*Ibcast)(void* data, int count, Handle type, int root, Handle comm, Handle* request);
  int (*Iallgather)(const void* send, int send_count, Handle send_type, void* recv, int recv_count,
                    Handle recv_type, Handle comm, Handle* request);
  int (*Iallreduce)(const void* send, void* recv, int count, Handle type, Handle op, Handle comm,
                    Handle* request);
  // MPI's non-blocking calls by kind, named MPI_I and the kind. nullptr: the kind has another form.
  template <class Function>
  using ByKind = std::array<Function*, kCalledKinds>;
  ByKind<int(const void* send, void* recv, int count, Handle type, Handle op, Handle comm,
             Handle* request)>
      Ireductions;
  ByKind<int(const void* send, int send_count, Handle send_type, void* recv, int recv_count,
             Handle recv_type, Handle comm, Handle* request)>
      Imoves;
  ByKind<int(const void* send, int send_count, Handle send_type, void* recv, int recv_count,
             Handle recv_type, int root, Handle comm, Handle* request)>
      Irooted_moves;
  int (*Op_create)(void (*combine)(void*, void*, int*, Handle*), int commutes, Handle* op);
  int (*Ibarrier)(Handle comm, Handle* request);
  int (*Grequest_start)(int (*query)(void*, void*), int (*release)(void*),
                        int (*cancel)(void*, int), void* extra, Handle* request);
  int (*Grequest_complete)(Handle request);
  // MPICH's MPIX_Grequest_start. MPI's wait and test functions call `wait` or `poll`, which may
  // complete the request. nullptr in other MPIs.
  int (*Grequest_start_driven)(int (*query)(void*, void*), int (*release)(void*),
                               int (*cancel)(void*, int), int (*poll)(void*, void*),
                               int (*wait)(int, void**, double, void*), void* extra,
                               Handle* request);
  // Open MPI's opal_progress_register. MPI's wait and test functions call `callback` repeatedly.
  // nullptr in other MPIs.
  int (*Progress_register)(int (*callback)());
  int (*Progress_unregister)(int (*callback)());
  // MPIX_Query_cuda_support: returns 1 if the MPI accepts addresses in CUDA device memory. nullptr
  // if the MPI lacks it.
  int (*Query_cuda_support)();
  int (*Status_set_elements)(void* status, Handle type, int count);
  int (*Status_set_cancelled)(void* status, int flag);
};

struct Constants {
  std::size_t handle_bytes;  // of a handle in the arrays that this MPI reads
  Handle comm_world, comm_self, comm_null, request_null, errors_return;
  Handle type_null, byte_type, int64_type, uint64_type, band_op;
  void* status_ignore;  // also MPI_STATUSES_IGNORE, which is equal in all families
  void* in_place;
  std::size_t status_source;  // offset of MPI_SOURCE in an MPI_Status
  int any_source, any_tag, tag_ub, undefined, err_other, thread_multiple;
};

}  // namespace gradred::mpi
