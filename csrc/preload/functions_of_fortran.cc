// The MPI's functions of Fortran that this library replaces, by all names that compilers give them.
//
// Open MPI's own ones call PMPI_ functions, so that calls of a Fortran program never come to those
// of C. Those of MPICH's family call the functions of C, by names for which the linker finds ours.
// So here such calls go on to the MPI's own Fortran, whatever their arguments, and come back as
// C's.
#include "preload/calls_or_below.h"
#include "preload/fortran.h"

using namespace gradred;           // NOLINT: this file has only functions of Fortran
using namespace gradred::preload;  // NOLINT

namespace {

using Int = const int*;

// The functions of the MPI's Fortran; their results have no meaning.
using FortranReduce = Below<int(const void*, void*, Int, Int, Int, Int, int*)>;
using FortranStart = Below<int(const void*, void*, Int, Int, Int, Int, int*, int*)>;
using FortranBcast = Below<int(void*, Int, Int, Int, Int, int*)>;
using FortranAllgather = Below<int(const void*, Int, Int, void*, Int, Int, Int, int*)>;
using Init = Below<int(int*)>;
using InitThread = Below<int(Int, int*, int*)>;

// The arguments of a reduction.
struct Reducing {
  const void* send;
  void* recv;
  Int count, type, op, comm;
};

void set(int* error, int code) {
  if (error != nullptr) *error = code;  // mpi_f08: an argument that may be missing
}

void reduce_in(const void* caller, FortranReduce& fortran, Function<Reduce>& c, const Reducing& a,
               int* error) {
  if (went_on(fortran, caller, a.send, a.recv, a.count, a.type, a.op, a.comm, error)) return;
  set(error, reduce_or_below(caller, c, of_c(a.send), of_c(a.recv), *a.count, type_of_c(*a.type),
                             op_of_c(*a.op), comm_of_c(*a.comm)));
}

void start_in(const void* caller, FortranStart& fortran, Function<StartReduce>& c,
              const Reducing& a, int* request, int* error) {
  if (went_on(fortran, caller, a.send, a.recv, a.count, a.type, a.op, a.comm, request, error)) {
    return;
  }
  Handle made = 0;
  const int code = start_or_below(caller, c, of_c(a.send), of_c(a.recv), *a.count,
                                  type_of_c(*a.type), op_of_c(*a.op), comm_of_c(*a.comm), &made);
  if (code == 0) *request = request_of_fortran(made);
  set(error, code);
}

template <class Function, class... Arguments>
void init_in(const void* caller, Function& below, Arguments... arguments) {
  below(caller, arguments...);
  begin_in(caller);
}

}  // namespace

extern "C" {

// The further names of a function are aliases, whatever their arguments are.

void mpi_allreduce_(const void* send, void* recv, Int count, Int type, Int op, Int comm,
                    int* error) {
  static constinit FortranReduce below{"mpi_allreduce_"};
  reduce_in(caller(), below, allreduce, {send, recv, count, type, op, comm}, error);
}
[[gnu::alias("mpi_allreduce_")]] void mpi_allreduce(), mpi_allreduce__(), MPI_ALLREDUCE(),
    mpi_allreduce_f08_();

void mpi_reduce_scatter_block_(const void* send, void* recv, Int count, Int type, Int op, Int comm,
                               int* error) {
  static constinit FortranReduce below{"mpi_reduce_scatter_block_"};
  reduce_in(caller(), below, blocks, {send, recv, count, type, op, comm}, error);
}
[[gnu::alias("mpi_reduce_scatter_block_")]] void mpi_reduce_scatter_block(),
    mpi_reduce_scatter_block__(), MPI_REDUCE_SCATTER_BLOCK(), mpi_reduce_scatter_block_f08_();

void mpi_scan_(const void* send, void* recv, Int count, Int type, Int op, Int comm, int* error) {
  static constinit FortranReduce below{"mpi_scan_"};
  reduce_in(caller(), below, prefix, {send, recv, count, type, op, comm}, error);
}
[[gnu::alias("mpi_scan_")]] void mpi_scan(), mpi_scan__(), MPI_SCAN(), mpi_scan_f08_();

void mpi_exscan_(const void* send, void* recv, Int count, Int type, Int op, Int comm, int* error) {
  static constinit FortranReduce below{"mpi_exscan_"};
  reduce_in(caller(), below, prefix_before, {send, recv, count, type, op, comm}, error);
}
[[gnu::alias("mpi_exscan_")]] void mpi_exscan(), mpi_exscan__(), MPI_EXSCAN(), mpi_exscan_f08_();

void mpi_iallreduce_(const void* send, void* recv, Int count, Int type, Int op, Int comm,
                     int* request, int* error) {
  static constinit FortranStart below{"mpi_iallreduce_"};
  start_in(caller(), below, start_allreduce, {send, recv, count, type, op, comm}, request, error);
}
[[gnu::alias("mpi_iallreduce_")]] void mpi_iallreduce(), mpi_iallreduce__(), MPI_IALLREDUCE(),
    mpi_iallreduce_f08_();

void mpi_ireduce_scatter_block_(const void* send, void* recv, Int count, Int type, Int op, Int comm,
                                int* request, int* error) {
  static constinit FortranStart below{"mpi_ireduce_scatter_block_"};
  start_in(caller(), below, start_blocks, {send, recv, count, type, op, comm}, request, error);
}
[[gnu::alias("mpi_ireduce_scatter_block_")]] void mpi_ireduce_scatter_block(),
    mpi_ireduce_scatter_block__(), MPI_IREDUCE_SCATTER_BLOCK(), mpi_ireduce_scatter_block_f08_();

void mpi_iscan_(const void* send, void* recv, Int count, Int type, Int op, Int comm, int* request,
                int* error) {
  static constinit FortranStart below{"mpi_iscan_"};
  start_in(caller(), below, start_prefix, {send, recv, count, type, op, comm}, request, error);
}
[[gnu::alias("mpi_iscan_")]] void mpi_iscan(), mpi_iscan__(), MPI_ISCAN(), mpi_iscan_f08_();

void mpi_iexscan_(const void* send, void* recv, Int count, Int type, Int op, Int comm, int* request,
                  int* error) {
  static constinit FortranStart below{"mpi_iexscan_"};
  start_in(caller(), below, start_prefix_before, {send, recv, count, type, op, comm}, request,
           error);
}
[[gnu::alias("mpi_iexscan_")]] void mpi_iexscan(), mpi_iexscan__(), MPI_IEXSCAN(),
    mpi_iexscan_f08_();

void mpi_bcast_(void* data, Int count, Int type, Int root, Int comm, int* error) {
  static constinit FortranBcast below{"mpi_bcast_"};
  if (went_on(below, caller(), data, count, type, root, comm, error)) return;
  set(error, bcast_or_below(caller(), bcast, of_c(data), *count, type_of_c(*type), *root,
                            comm_of_c(*comm)));
}
[[gnu::alias("mpi_bcast_")]] void mpi_bcast(), mpi_bcast__(), MPI_BCAST(), mpi_bcast_f08_();

void mpi_allgather_(const void* send, Int send_count, Int send_type, void* recv, Int recv_count,
                    Int recv_type, Int comm, int* error) {
  static constinit FortranAllgather below{"mpi_allgather_"};
  if (went_on(below, caller(), send, send_count, send_type, recv, recv_count, recv_type, comm,
              error)) {
    return;
  }
  set(error, allgather_or_below(caller(), allgather, of_c(send), *send_count, type_of_c(*send_type),
                                of_c(recv), *recv_count, type_of_c(*recv_type), comm_of_c(*comm)));
}
[[gnu::alias("mpi_allgather_")]] void mpi_allgather(), mpi_allgather__(), MPI_ALLGATHER(),
    mpi_allgather_f08_();

void mpi_init_(int* error) {
  static constinit Init below{"mpi_init_"};
  init_in(caller(), below, error);
}
[[gnu::alias("mpi_init_")]] void mpi_init(), mpi_init__(), MPI_INIT();

void mpi_init_f08_(int* error) {
  static constinit Init below{"mpi_init_f08_"};
  init_in(caller(), below, error);
}

void mpi_init_thread_(Int required, int* provided, int* error) {
  static constinit InitThread below{"mpi_init_thread_"};
  init_in(caller(), below, required, provided, error);
}
[[gnu::alias("mpi_init_thread_")]] void mpi_init_thread(), mpi_init_thread__(), MPI_INIT_THREAD();

void mpi_init_thread_f08_(Int required, int* provided, int* error) {
  static constinit InitThread below{"mpi_init_thread_f08_"};
  init_in(caller(), below, required, provided, error);
}

void mpi_finalize_(int* error) { set(error, finalize_in(caller())); }
[[gnu::alias("mpi_finalize_")]] void mpi_finalize(), mpi_finalize__(), MPI_FINALIZE(),
    mpi_finalize_f08_();

}  // extern "C"
