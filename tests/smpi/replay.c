/* Runs one rank's schedule from a table, for SimGrid's SMPI: smpicc replay.c, smpirun ... ./a.out TABLE.

   A line of the table is `rank round kind peer bytes`: kind s (send), r (receive) or x (seconds of
   the processor, in place of bytes). As in our executor, the messages of a round are in flight
   together; when all have completed, the processor works; then the next round begins. Rank 0 prints
   the time until the last rank is done. */
#include <mpi.h>
#include <smpi/smpi.h>
#include <stdio.h>
#include <stdlib.h>

#define MOST 8192           /* messages of a round */
#define LONGEST (1L << 30) /* bytes of a message */

static void post(char kind, int peer, long bytes, char* memory, MPI_Request* request) {
  if (kind == 's')
    MPI_Isend(memory, (int)bytes, MPI_BYTE, peer, 0, MPI_COMM_WORLD, request);
  else
    MPI_Irecv(memory, (int)bytes, MPI_BYTE, peer, 0, MPI_COMM_WORLD, request);
}

static void run(FILE* table, int self, char* memory) {
  static MPI_Request requests[MOST];
  int rank, round, peer, count = 0, now = 0;
  double work = 0, amount;
  char kind;
  while (fscanf(table, "%d %d %c %d %lf", &rank, &round, &kind, &peer, &amount) == 5) {
    if (rank != self) continue;
    if (round != now) {
      MPI_Waitall(count, requests, MPI_STATUSES_IGNORE);
      if (work > 0) smpi_execute(work);
      count = 0, work = 0, now = round;
    }
    if (kind == 'x')
      work += amount;
    else
      post(kind, peer, (long)amount, memory, &requests[count++]);
  }
  MPI_Waitall(count, requests, MPI_STATUSES_IGNORE);
  if (work > 0) smpi_execute(work);
}

int main(int argc, char** argv) {
  int rank;
  double begin, mine, last;
  FILE* table;
  char* memory;
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  table = fopen(argv[1], "r");
  if (table == NULL) return 1;
  memory = SMPI_SHARED_MALLOC(LONGEST); /* one for all, and SMPI copies nothing into it */
  begin = MPI_Wtime();
  run(table, rank, memory);
  mine = MPI_Wtime() - begin;
  fclose(table);
  SMPI_SHARED_FREE(memory);
  MPI_Reduce(&mine, &last, 1, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
  if (rank == 0) printf("seconds %.12e\n", last);
  MPI_Finalize();
  return 0;
}
