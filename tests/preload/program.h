/* What the C programs of these tests share. */
#ifndef GRADRED_TESTS_PRELOAD_PROGRAM_H
#define GRADRED_TESTS_PRELOAD_PROGRAM_H

#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int rank, size, checks;

static void expect(int condition, const char* what, int line) {
  ++checks;
  if (condition) return;
  fprintf(stderr, "rank %d: line %d: %s\n", rank, line, what);
  MPI_Abort(MPI_COMM_WORLD, 3);
}
#define EXPECT(condition) expect(condition, #condition, __LINE__)

static void begin(int* argc, char*** argv) {
  MPI_Init(argc, argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
}

static int end_if(int runs) {
  if (runs) MPI_Finalize();
  printf("rank %d of %d: %d checks passed\n", rank, size, checks);
  return 0;
}
static inline int end(void) { return end_if(1); }

#endif
