/* Calls the functions of Fortran by each name that a compiler may give them. */
#include "program.h"

typedef void Allreduce(const void*, void*, const MPI_Fint*, const MPI_Fint*, const MPI_Fint*,
                       const MPI_Fint*, MPI_Fint*);
typedef void Iallreduce(const void*, void*, const MPI_Fint*, const MPI_Fint*, const MPI_Fint*,
                        const MPI_Fint*, MPI_Fint*, MPI_Fint*);
typedef void Bcast(void*, const MPI_Fint*, const MPI_Fint*, const MPI_Fint*, const MPI_Fint*,
                   MPI_Fint*);

extern Allreduce mpi_allreduce __attribute__((weak)), mpi_allreduce_ __attribute__((weak)),
    mpi_allreduce__ __attribute__((weak)), MPI_ALLREDUCE __attribute__((weak)),
    mpi_allreduce_f08_ __attribute__((weak));
extern Iallreduce mpi_iallreduce_ __attribute__((weak));
extern Bcast mpi_bcast_ __attribute__((weak));

int main(int argc, char** argv) {
  begin(&argc, &argv);
  const MPI_Fint count = 1000, one = 1, root = size - 1;
  const MPI_Fint world = MPI_Comm_c2f(MPI_COMM_WORLD), sum = MPI_Op_c2f(MPI_SUM);
  const MPI_Fint type = MPI_Type_c2f(MPI_DOUBLE), whole = MPI_Type_c2f(MPI_INT);
  Allreduce* const names[] = {mpi_allreduce, mpi_allreduce_, mpi_allreduce__, MPI_ALLREDUCE,
                              mpi_allreduce_f08_};
  static double ones[1000], sums[1000];
  for (int i = 0; i < 1000; ++i) ones[i] = 1;
  for (int i = 0; i < 5; ++i) {
    MPI_Fint error = -1;
    EXPECT(names[i] != NULL);
    sums[999] = 0;
    names[i](ones, sums, &count, &type, &sum, &world, i == 4 ? NULL : &error);
    EXPECT(sums[999] == size && (i == 4 || error == MPI_SUCCESS));
  }
  MPI_Fint error = -1, request = -1;
  mpi_iallreduce_(ones, sums, &count, &type, &sum, &world, &request, &error);
  MPI_Request started = MPI_Request_f2c(request);
  EXPECT(error == MPI_SUCCESS && started != MPI_REQUEST_NULL);
  MPI_Wait(&started, MPI_STATUS_IGNORE);
  int value = rank;
  error = -1;
  mpi_bcast_(&value, &one, &whole, &root, &world, &error);
  EXPECT(error == MPI_SUCCESS && value == size - 1);
  return end();
}
