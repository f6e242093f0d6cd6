/* Under `gradred run --preload`: MPI_Allreduce, which is then gradred's, and the MPI's own, block
 * by block in turn on the same buffers. Rank 0 prints what benchmarks/preload.py reads. The time of
 * a block is that of the slowest rank. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

typedef int Allreduce(const void*, void*, int, MPI_Datatype, MPI_Op, MPI_Comm);

static double now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

/* Seconds of a call, of the slowest rank. */
static double block(Allreduce* call, const double* send, double* recv, int count, int calls,
                    MPI_Comm comm) {
  PMPI_Barrier(MPI_COMM_WORLD);
  const double begin = now();
  for (int i = 0; i < calls; ++i) call(send, recv, count, MPI_DOUBLE, MPI_SUM, comm);
  const double mine = (now() - begin) / calls;
  double slowest = 0;
  PMPI_Allreduce(&mine, &slowest, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
  return slowest;
}

static void compare(const char* what, int rank, int count, double seconds, int rounds,
                    MPI_Comm comm) {
  double *send = malloc(sizeof(double) * (size_t)count),
         *recv = malloc(sizeof(double) * (size_t)count);
  for (int i = 0; i < count; ++i) send[i] = i % 7;
  int ranks = 0;
  MPI_Comm_size(comm, &ranks);
  MPI_Allreduce(send, recv, count, MPI_DOUBLE, MPI_SUM, comm);
  for (int i = 0; i < count; ++i) {
    if (recv[i] != ranks * (i % 7)) MPI_Abort(MPI_COMM_WORLD, 3);
  }
  const double one = block(PMPI_Allreduce, send, recv, count, 20, comm);
  int calls = (int)(seconds / one / (2 * rounds));
  calls = calls < 5 ? 5 : calls > 200000 ? 200000 : calls;
  block(MPI_Allreduce, send, recv, count, calls, comm);
  for (int round = 0; round < rounds; ++round) {
    double ours, theirs;
    if (round % 2) {
      ours = block(MPI_Allreduce, send, recv, count, calls, comm);
      theirs = block(PMPI_Allreduce, send, recv, count, calls, comm);
    } else {
      theirs = block(PMPI_Allreduce, send, recv, count, calls, comm);
      ours = block(MPI_Allreduce, send, recv, count, calls, comm);
    }
    if (rank == 0) printf("%s %zu %.9g %.9g\n", what, sizeof(double) * (size_t)count, ours, theirs);
  }
  free(send);
  free(recv);
}

int main(int argc, char** argv) {
  const double seconds = argc > 1 ? atof(argv[1]) : 1;
  const int rounds = argc > 2 ? atoi(argv[2]) : 10, most = argc > 3 ? atoi(argv[3]) : 8 << 20;
  int rank = 0;
  double zero = 0, sum = 0, times[3];
  times[0] = now();
  MPI_Init(&argc, &argv);
  times[1] = now();
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Allreduce(&zero, &sum, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
  times[2] = now();
  if (rank == 0) printf("start 0 %.9g %.9g\n", times[1] - times[0], times[2] - times[1]);
  if (seconds > 0) {
    compare("through", rank, 1, seconds, 100 * rounds, MPI_COMM_SELF);
    for (long bytes = 8; bytes <= most; bytes *= 4) {
      compare("allreduce", rank, (int)(bytes / 8), seconds, rounds, MPI_COMM_WORLD);
    }
  }
  MPI_Finalize();
  return 0;
}
