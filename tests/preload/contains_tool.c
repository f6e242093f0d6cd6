/* A program with a tool in it, which counts calls. */
#include "program.h"

static int calls;
int MPI_Allreduce(const void* send, void* recv, int count, MPI_Datatype type, MPI_Op op,
                  MPI_Comm comm) {
  ++calls;
  return PMPI_Allreduce(send, recv, count, type, op, comm);
}

int main(int argc, char** argv) {
  begin(&argc, &argv);
  int one = 1, sum = 0;
  MPI_Allreduce(&one, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  EXPECT(sum == size && calls == 1);
  return end();
}
