/* A library with all calls of MPI, which another program opens. */
#include "program.h"

int run(int* argc, char*** argv) {
  begin(argc, argv);
  for (int time = 0; time < 9; ++time) {
    int one = 1, sum = 0;
    MPI_Allreduce(&one, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    EXPECT(sum == size);
  }
  return end();
}
