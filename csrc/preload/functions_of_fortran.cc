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

// A function below this library, of the MPI's Fortran and of its C.
template <template <class> class Form, class... Arguments>
struct Both {
  consteval Both(const char* name, const char* of_c, const char* of_c_for_large_counts)
      : fortran(name), c(of_c, of_c_for_large_counts) {}

  Below<int(Arguments...)> fortran;  // its result has no meaning
  Function<Form> c;
};
using BothReduce = Both<Reduce, const void*, void*, Int, Int, Int, Int, int*>;
using BothStart = Both<StartReduce, const void*, void*, Int, Int, Int, Int, int*, int*>;

// The arguments of a reduction.
struct Reducing {
  const void* send;
  void* recv;
  Int count, type, op, comm;
};

void set(int* error, int code) {
  if (error != nullptr) *error = code;  // mpi_f08: an argument that may be missing
}

void reduce_in(const void* caller, BothReduce& below, const Reducing& a, int* error) {
  if (goes_on_in_fortran(below.fortran, caller)) {
    below.fortran(caller, a.send, a.recv, a.count, a.type, a.op, a.comm, error);
    return;
  }
  set(error, reduce_or_below(caller, below.c, of_c(a.send), of_c(a.recv), *a.count,
                             type_of_c(*a.type), op_of_c(*a.op), comm_of_c(*a.comm)));
}

void start_in(const void* caller, BothStart& below, const Reducing& a, int* request, int* error) {
  if (goes_on_in_fortran(below.fortran, caller)) {
    below.fortran(caller, a.send, a.recv, a.count, a.type, a.op, a.comm, request, error);
    return;
  }
  Handle made = 0;
  const int code = start_or_below(caller, below.c, of_c(a.send), of_c(a.recv), *a.count,
                                  type_of_c(*a.type), op_of_c(*a.op), comm_of_c(*a.comm), &made);
  if (code == 0) *request = request_of_fortran(made);
  set(error, code);
}

using Init = Below<int(int*)>;
using InitThread = Below<int(Int, int*, int*)>;

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
  static constinit BothReduce below{"mpi_allreduce_", "MPI_Allreduce", "MPI_Allreduce_c"};
  reduce_in(__builtin_return_address(0), below, {send, recv, count, type, op, comm}, error);
}
[[gnu::alias("mpi_allreduce_")]] void mpi_allreduce(), mpi_allreduce__(), MPI_ALLREDUCE(),
    mpi_allreduce_f08_();

void mpi_reduce_scatter_block_(const void* send, void* recv, Int count, Int type, Int op, Int comm,
                               int* error) {
  static constinit BothReduce below{"mpi_reduce_scatter_block_", "MPI_Reduce_scatter_block",
                                    "MPI_Reduce_scatter_block_c"};
  reduce_in(__builtin_return_address(0), below, {send, recv, count, type, op, comm}, error);
}
[[gnu::alias("mpi_reduce_scatter_block_")]] void mpi_reduce_scatter_block(),
    mpi_reduce_scatter_block__(), MPI_REDUCE_SCATTER_BLOCK(), mpi_reduce_scatter_block_f08_();

void mpi_scan_(const void* send, void* recv, Int count, Int type, Int op, Int comm, int* error) {
  static constinit BothReduce below{"mpi_scan_", "MPI_Scan", "MPI_Scan_c"};
  reduce_in(__builtin_return_address(0), below, {send, recv, count, type, op, comm}, error);
}
[[gnu::alias("mpi_scan_")]] void mpi_scan(), mpi_scan__(), MPI_SCAN(), mpi_scan_f08_();

void mpi_exscan_(const void* send, void* recv, Int count, Int type, Int op, Int comm, int* error) {
  static constinit BothReduce below{"mpi_exscan_", "MPI_Exscan", "MPI_Exscan_c"};
  reduce_in(__builtin_return_address(0), below, {send, recv, count, type, op, comm}, error);
}
[[gnu::alias("mpi_exscan_")]] void mpi_exscan(), mpi_exscan__(), MPI_EXSCAN(), mpi_exscan_f08_();

void mpi_iallreduce_(const void* send, void* recv, Int count, Int type, Int op, Int comm,
                     int* request, int* error) {
  static constinit BothStart below{"mpi_iallreduce_", "MPI_Iallreduce", "MPI_Iallreduce_c"};
  start_in(__builtin_return_address(0), below, {send, recv, count, type, op, comm}, request, error);
}
[[gnu::alias("mpi_iallreduce_")]] void mpi_iallreduce(), mpi_iallreduce__(), MPI_IALLREDUCE(),
    mpi_iallreduce_f08_();

void mpi_ireduce_scatter_block_(const void* send, void* recv, Int count, Int type, Int op, Int comm,
                                int* request, int* error) {
  static constinit BothStart below{"mpi_ireduce_scatter_block_", "MPI_Ireduce_scatter_block",
                                   "MPI_Ireduce_scatter_block_c"};
  start_in(__builtin_return_address(0), below, {send, recv, count, type, op, comm}, request, error);
}
[[gnu::alias("mpi_ireduce_scatter_block_")]] void mpi_ireduce_scatter_block(),
    mpi_ireduce_scatter_block__(), MPI_IREDUCE_SCATTER_BLOCK(), mpi_ireduce_scatter_block_f08_();

void mpi_iscan_(const void* send, void* recv, Int count, Int type, Int op, Int comm, int* request,
                int* error) {
  static constinit BothStart below{"mpi_iscan_", "MPI_Iscan", "MPI_Iscan_c"};
  start_in(__builtin_return_address(0), below, {send, recv, count, type, op, comm}, request, error);
}
[[gnu::alias("mpi_iscan_")]] void mpi_iscan(), mpi_iscan__(), MPI_ISCAN(), mpi_iscan_f08_();

void mpi_iexscan_(const void* send, void* recv, Int count, Int type, Int op, Int comm, int* request,
                  int* error) {
  static constinit BothStart below{"mpi_iexscan_", "MPI_Iexscan", "MPI_Iexscan_c"};
  start_in(__builtin_return_address(0), below, {send, recv, count, type, op, comm}, request, error);
}
[[gnu::alias("mpi_iexscan_")]] void mpi_iexscan(), mpi_iexscan__(), MPI_IEXSCAN(),
    mpi_iexscan_f08_();

void mpi_bcast_(void* data, Int count, Int type, Int root, Int comm, int* error) {
  static constinit Both<Bcast, void*, Int, Int, Int, Int, int*> below{"mpi_bcast_", "MPI_Bcast",
                                                                      "MPI_Bcast_c"};
  const void* const caller = __builtin_return_address(0);
  if (goes_on_in_fortran(below.fortran, caller)) {
    below.fortran(caller, data, count, type, root, comm, error);
    return;
  }
  set(error, bcast_or_below(caller, below.c, of_c(data), *count, type_of_c(*type), *root,
                            comm_of_c(*comm)));
}
[[gnu::alias("mpi_bcast_")]] void mpi_bcast(), mpi_bcast__(), MPI_BCAST(), mpi_bcast_f08_();

void mpi_allgather_(const void* send, Int send_count, Int send_type, void* recv, Int recv_count,
                    Int recv_type, Int comm, int* error) {
  static constinit Both<Allgather, const void*, Int, Int, void*, Int, Int, Int, int*> below{
      "mpi_allgather_", "MPI_Allgather", "MPI_Allgather_c"};
  const void* const caller = __builtin_return_address(0);
  if (goes_on_in_fortran(below.fortran, caller)) {
    below.fortran(caller, send, send_count, send_type, recv, recv_count, recv_type, comm, error);
    return;
  }
  set(error, allgather_or_below(caller, below.c, of_c(send), *send_count, type_of_c(*send_type),
                                of_c(recv), *recv_count, type_of_c(*recv_type), comm_of_c(*comm)));
}
[[gnu::alias("mpi_allgather_")]] void mpi_allgather(), mpi_allgather__(), MPI_ALLGATHER(),
    mpi_allgather_f08_();

void mpi_init_(int* error) {
  static constinit Init below{"mpi_init_"};
  init_in(__builtin_return_address(0), below, error);
}
[[gnu::alias("mpi_init_")]] void mpi_init(), mpi_init__(), MPI_INIT();

void mpi_init_f08_(int* error) {
  static constinit Init below{"mpi_init_f08_"};
  init_in(__builtin_return_address(0), below, error);
}

void mpi_init_thread_(Int required, int* provided, int* error) {
  static constinit InitThread below{"mpi_init_thread_"};
  init_in(__builtin_return_address(0), below, required, provided, error);
}
[[gnu::alias("mpi_init_thread_")]] void mpi_init_thread(), mpi_init_thread__(), MPI_INIT_THREAD();

void mpi_init_thread_f08_(Int required, int* provided, int* error) {
  static constinit InitThread below{"mpi_init_thread_f08_"};
  init_in(__builtin_return_address(0), below, required, provided, error);
}

void mpi_finalize_(int* error) { set(error, finalize_in(__builtin_return_address(0))); }
[[gnu::alias("mpi_finalize_")]] void mpi_finalize(), mpi_finalize__(), MPI_FINALIZE(),
    mpi_finalize_f08_();

}  // extern "C"
