/* Every kind of call, with results that are exact in any order of the sums. */
#include "program.h"

static const int kCounts[] = {0, 1, 2, 13, 1009, 70001, 300000};
enum { kSizes = sizeof kCounts / sizeof *kCounts };

static int input(int of, int place) { return place % 5 + of % 3; }
static int sum_of(int first, int end, int place) {
  int total = 0;
  for (int of = first; of < end; ++of) total += input(of, place);
  return total;
}

static double* numbers(int count, int of) {
  double* made = malloc(sizeof(double) * (count + 1));
  for (int i = 0; i < count; ++i) made[i] = input(of, i);
  made[count] = -1;
  return made;
}

static void reductions(MPI_Comm comm, int count, int in_place) {
  int me, ranks;
  MPI_Comm_rank(comm, &me);
  MPI_Comm_size(comm, &ranks);
  const struct {
    int (*call)(const void*, void*, int, MPI_Datatype, MPI_Op, MPI_Comm);
    int first, end;
  } kinds[] = {{MPI_Allreduce, 0, ranks}, {MPI_Scan, 0, me + 1}, {MPI_Exscan, 0, me}};
  for (int kind = 0; kind < 3; ++kind) {
    double* send = numbers(count, me);
    double* recv = numbers(count, in_place ? me : 0);
    const void* from = in_place ? MPI_IN_PLACE : send;
    EXPECT(kinds[kind].call(from, recv, count, MPI_DOUBLE, MPI_SUM, comm) == MPI_SUCCESS);
    for (int i = 0; i < count && kinds[kind].end > 0; ++i) {
      if (recv[i] != sum_of(kinds[kind].first, kinds[kind].end, i)) EXPECT(!"the sum");
    }
    EXPECT(recv[count] == -1 && send[count] == -1);
    free(send);
    free(recv);
  }
}

static void blocks(MPI_Comm comm, int count, int in_place) {
  int me, ranks;
  MPI_Comm_rank(comm, &me);
  MPI_Comm_size(comm, &ranks);
  double *all = numbers(count * ranks, me), *block = numbers(count, 0);
  void* to = in_place ? all : block;
  EXPECT(MPI_Reduce_scatter_block(in_place ? MPI_IN_PLACE : all, to, count, MPI_DOUBLE, MPI_SUM,
                                  comm) == MPI_SUCCESS);
  for (int i = 0; i < count; ++i) {
    if (((double*)to)[i] != sum_of(0, ranks, me * count + i)) EXPECT(!"the block's sum");
  }
  for (int i = 0; i < count; ++i) block[i] = all[me * count + i] = input(me, i);
  EXPECT(MPI_Allgather(in_place ? MPI_IN_PLACE : block, count, MPI_DOUBLE, all, count, MPI_DOUBLE,
                       comm) == MPI_SUCCESS);
  for (int of = 0; of < ranks; ++of) {
    for (int i = 0; i < count; ++i) {
      if (all[of * count + i] != input(of, i)) EXPECT(!"the gathered block");
    }
  }
  EXPECT(all[count * ranks] == -1 && block[count] == -1);
  free(all);
  free(block);
  for (int root = 0; root < ranks; ++root) {
    double* data = numbers(count, me);
    EXPECT(MPI_Bcast(data, count, MPI_DOUBLE, root, comm) == MPI_SUCCESS);
    for (int i = 0; i < count; ++i) {
      if (data[i] != input(root, i)) EXPECT(!"the root's data");
    }
    free(data);
  }
}

static void started(MPI_Comm comm, int count) {
  int me, ranks;
  MPI_Comm_rank(comm, &me);
  MPI_Comm_size(comm, &ranks);
  double *send = numbers(count * ranks, me), *sums = numbers(count * ranks, 0);
  double *scanned = numbers(count, 0), *block = numbers(count, 0), *before = numbers(count, 0);
  double *gathered = numbers(count * ranks, 0), *data = numbers(count, me);
  MPI_Request all[6];
  MPI_Iallreduce(send, sums, count * ranks, MPI_DOUBLE, MPI_SUM, comm, &all[0]);
  MPI_Iscan(send, scanned, count, MPI_DOUBLE, MPI_SUM, comm, &all[1]);
  MPI_Ireduce_scatter_block(send, block, count, MPI_DOUBLE, MPI_SUM, comm, &all[2]);
  MPI_Iallgather(send, count, MPI_DOUBLE, gathered, count, MPI_DOUBLE, comm, &all[3]);
  MPI_Ibcast(data, count, MPI_DOUBLE, 0, comm, &all[4]);
  MPI_Iexscan(send, before, count, MPI_DOUBLE, MPI_SUM, comm, &all[5]);
  for (int i = 0; i < 6; ++i) EXPECT(all[i] != MPI_REQUEST_NULL);
  EXPECT(MPI_Waitall(6, all, MPI_STATUSES_IGNORE) == MPI_SUCCESS);
  for (int i = 0; i < 6; ++i) EXPECT(all[i] == MPI_REQUEST_NULL);
  for (int i = 0; i < count * ranks; ++i) {
    if (sums[i] != sum_of(0, ranks, i)) EXPECT(!"the started sum");
  }
  for (int i = 0; i < count; ++i) {
    if (scanned[i] != sum_of(0, me + 1, i)) EXPECT(!"the started scan");
    if (block[i] != sum_of(0, ranks, me * count + i)) EXPECT(!"the started block");
    if (me > 0 && before[i] != sum_of(0, me, i)) EXPECT(!"the started exscan");
    if (data[i] != input(0, i)) EXPECT(!"the started broadcast");
  }
  free(send), free(sums), free(scanned), free(block), free(before), free(gathered), free(data);
}

/* Types and operations that gradred has, and some that only the MPI has. */
static void types(MPI_Comm comm) {
  int me, ranks;
  MPI_Comm_rank(comm, &me);
  MPI_Comm_size(comm, &ranks);
  signed char little = 1;
  EXPECT(MPI_Allreduce(MPI_IN_PLACE, &little, 1, MPI_SIGNED_CHAR, MPI_SUM, comm) == 0);
  EXPECT(little == ranks);
  unsigned bits = 1u << me;
  EXPECT(MPI_Allreduce(MPI_IN_PLACE, &bits, 1, MPI_UNSIGNED, MPI_BOR, comm) == 0);
  EXPECT(bits == (1u << ranks) - 1);
  long double precise = 1;
  EXPECT(MPI_Allreduce(MPI_IN_PLACE, &precise, 1, MPI_LONG_DOUBLE, MPI_SUM, comm) == 0);
  EXPECT(precise == ranks);
  struct {
    double value;
    int where;
  } least = {-me, me};
  EXPECT(MPI_Allreduce(MPI_IN_PLACE, &least, 1, MPI_DOUBLE_INT, MPI_MINLOC, comm) == 0);
  EXPECT(least.where == ranks - 1 && least.value == 1 - ranks);
  EXPECT(MPI_Bcast(&least, 1, MPI_DOUBLE_INT, 0, comm) == 0);
  EXPECT(least.where == ranks - 1);
  unsigned char byte = (unsigned char)(1 << me);
  EXPECT(MPI_Allreduce(MPI_IN_PLACE, &byte, 1, MPI_BYTE, MPI_BOR, comm) == 0);
  EXPECT(byte == (1 << ranks) - 1);
}

static void combine(void* in, void* result, int* count, MPI_Datatype* type) {
  (void)type;
  for (int i = 0; i < *count; ++i) ((int*)result)[i] += ((int*)in)[i] + 1;
}

static void operations_of_the_program(MPI_Comm comm) {
  int me, ranks, found = 0;
  MPI_Comm_rank(comm, &me);
  MPI_Comm_size(comm, &ranks);
  MPI_Op op;
  MPI_Op_create(combine, 0, &op);
  const int one = 1;
  EXPECT(MPI_Allreduce(&one, &found, 1, MPI_INT, op, comm) == 0);
  EXPECT(found == 2 * ranks - 1);
  MPI_Op_free(&op);
}

/* The ranks describe the same elements by other types, which MPI allows. */
static void mixed_types(MPI_Comm comm) {
  int me, ranks;
  MPI_Comm_rank(comm, &me);
  MPI_Comm_size(comm, &ranks);
  MPI_Datatype pair, spread;
  MPI_Type_contiguous(2, MPI_INT, &pair);
  MPI_Type_vector(10, 1, 3, MPI_INT, &spread);
  MPI_Type_commit(&pair);
  MPI_Type_commit(&spread);
  for (int root = 0; root < ranks; ++root) {
    int data[30];
    for (int i = 0; i < 30; ++i) data[i] = me == root ? i : -1;
    const int is_spread = (me + root) % 3 == 0;
    if (is_spread) {
      EXPECT(MPI_Bcast(data, 1, spread, root, comm) == 0);
    } else if ((me + root) % 3 == 1) {
      EXPECT(MPI_Bcast(data, 5, pair, root, comm) == 0);
    } else {
      EXPECT(MPI_Bcast(data, 10, MPI_INT, root, comm) == 0);
    }
    const int root_spreads = 2 * root % 3 == 0;
    for (int i = 0; i < 30; ++i) {
      const int held = !is_spread ? i < 10 : i % 3 == 0 && i < 30;
      const int number = is_spread ? i / 3 : i;
      const int wanted = !held ? -1 : root_spreads ? 3 * number : number;
      if (data[i] != wanted && me != root) EXPECT(!"the root's elements");
      if (me == root) EXPECT(data[i] == i);
    }
  }
  int* all = malloc(sizeof(int) * 30 * (ranks + 1));
  int mine[30];
  for (int way = 0; way < 3; ++way) {
    for (int i = 0; i < 30 * (ranks + 1); ++i) all[i] = -1;
    for (int i = 0; i < 30; ++i) mine[i] = 100 * me + i;
    if ((me + way) % 3 == 0) { /* from spread elements, to plain ones */
      EXPECT(MPI_Allgather(mine, 1, spread, all, 10, MPI_INT, comm) == 0);
    } else if ((me + way) % 3 == 1) { /* from plain elements, to pairs */
      EXPECT(MPI_Allgather(mine, 10, MPI_INT, all, 5, pair, comm) == 0);
    } else { /* to spread elements: each block begins where the one before ends */
      EXPECT(MPI_Allgather(mine, 10, MPI_INT, all, 1, spread, comm) == 0);
    }
    for (int of = 0; of < ranks; ++of) {
      for (int i = 0; i < 10; ++i) {
        const int step = (of + way) % 3 == 0 ? 3 : 1;
        const int place = (me + way) % 3 == 2 ? 28 * of + 3 * i : 10 * of + i;
        if (all[place] != 100 * of + step * i) EXPECT(!"the gathered elements");
      }
    }
  }
  free(all);
  MPI_Type_free(&pair);
  MPI_Type_free(&spread);
}

static void all_calls(MPI_Comm comm) {
  for (int i = 0; i < kSizes; ++i) {
    for (int in_place = 0; in_place < 2; ++in_place) {
      reductions(comm, kCounts[i], in_place);
      blocks(comm, kCounts[i], in_place);
    }
    started(comm, kCounts[i]);
  }
  types(comm);
  operations_of_the_program(comm);
  mixed_types(comm);
}

int main(int argc, char** argv) {
  begin(&argc, &argv);
  all_calls(MPI_COMM_WORLD);
  MPI_Comm copy, half;
  for (int time = 0; time < 3; ++time) {
    MPI_Comm_dup(MPI_COMM_WORLD, &copy);
    types(copy);
    mixed_types(copy);
    MPI_Comm_free(&copy);
  }
  MPI_Comm_split(MPI_COMM_WORLD, rank % 2, -rank, &half);
  all_calls(half);
  MPI_Comm_free(&half);
  all_calls(MPI_COMM_SELF);
  all_calls(MPI_COMM_WORLD);
  return end();
}
