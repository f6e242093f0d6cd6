// The MPI's functions of C that this library replaces. Arguments have the types of the MPI
// standard, with handles as words: in some MPIs a handle has 32 bits, and the others of its word
// any value.
#include "preload/calls_or_below.h"

using namespace gradred;           // NOLINT: this file has only functions of C
using namespace gradred::preload;  // NOLINT

extern "C" {

int MPI_Allreduce(const void* send, void* recv, int count, Handle type, Handle op, Handle comm) {
  return reduce_or_below(caller(), allreduce, send, recv, count, type, op, comm);
}
int MPI_Allreduce_c(const void* send, void* recv, Count count, Handle type, Handle op,
                    Handle comm) {
  return reduce_or_below(caller(), allreduce, send, recv, count, type, op, comm);
}

int MPI_Reduce_scatter_block(const void* send, void* recv, int count, Handle type, Handle op,
                             Handle comm) {
  return reduce_or_below(caller(), blocks, send, recv, count, type, op, comm);
}
int MPI_Reduce_scatter_block_c(const void* send, void* recv, Count count, Handle type, Handle op,
                               Handle comm) {
  return reduce_or_below(caller(), blocks, send, recv, count, type, op, comm);
}

int MPI_Scan(const void* send, void* recv, int count, Handle type, Handle op, Handle comm) {
  return reduce_or_below(caller(), prefix, send, recv, count, type, op, comm);
}
int MPI_Scan_c(const void* send, void* recv, Count count, Handle type, Handle op, Handle comm) {
  return reduce_or_below(caller(), prefix, send, recv, count, type, op, comm);
}

int MPI_Exscan(const void* send, void* recv, int count, Handle type, Handle op, Handle comm) {
  return reduce_or_below(caller(), prefix_before, send, recv, count, type, op, comm);
}
int MPI_Exscan_c(const void* send, void* recv, Count count, Handle type, Handle op, Handle comm) {
  return reduce_or_below(caller(), prefix_before, send, recv, count, type, op, comm);
}

int MPI_Iallreduce(const void* send, void* recv, int count, Handle type, Handle op, Handle comm,
                   Handle* request) {
  return start_or_below(caller(), start_allreduce, send, recv, count, type, op, comm, request);
}
int MPI_Iallreduce_c(const void* send, void* recv, Count count, Handle type, Handle op, Handle comm,
                     Handle* request) {
  return start_or_below(caller(), start_allreduce, send, recv, count, type, op, comm, request);
}

int MPI_Ireduce_scatter_block(const void* send, void* recv, int count, Handle type, Handle op,
                              Handle comm, Handle* request) {
  return start_or_below(caller(), start_blocks, send, recv, count, type, op, comm, request);
}
int MPI_Ireduce_scatter_block_c(const void* send, void* recv, Count count, Handle type, Handle op,
                                Handle comm, Handle* request) {
  return start_or_below(caller(), start_blocks, send, recv, count, type, op, comm, request);
}

int MPI_Iscan(const void* send, void* recv, int count, Handle type, Handle op, Handle comm,
              Handle* request) {
  return start_or_below(caller(), start_prefix, send, recv, count, type, op, comm, request);
}
int MPI_Iscan_c(const void* send, void* recv, Count count, Handle type, Handle op, Handle comm,
                Handle* request) {
  return start_or_below(caller(), start_prefix, send, recv, count, type, op, comm, request);
}

int MPI_Iexscan(const void* send, void* recv, int count, Handle type, Handle op, Handle comm,
                Handle* request) {
  return start_or_below(caller(), start_prefix_before, send, recv, count, type, op, comm, request);
}
int MPI_Iexscan_c(const void* send, void* recv, Count count, Handle type, Handle op, Handle comm,
                  Handle* request) {
  return start_or_below(caller(), start_prefix_before, send, recv, count, type, op, comm, request);
}

int MPI_Bcast(void* data, int count, Handle type, int root, Handle comm) {
  return bcast_or_below(caller(), bcast, data, count, type, root, comm);
}
int MPI_Bcast_c(void* data, Count count, Handle type, int root, Handle comm) {
  return bcast_or_below(caller(), bcast, data, count, type, root, comm);
}

int MPI_Allgather(const void* send, int send_count, Handle send_type, void* recv, int recv_count,
                  Handle recv_type, Handle comm) {
  return allgather_or_below(caller(), allgather, send, send_count, send_type, recv, recv_count,
                            recv_type, comm);
}
int MPI_Allgather_c(const void* send, Count send_count, Handle send_type, void* recv,
                    Count recv_count, Handle recv_type, Handle comm) {
  return allgather_or_below(caller(), allgather, send, send_count, send_type, recv, recv_count,
                            recv_type, comm);
}

}  // extern "C"
