/* One case for each word on the command line: what programs may do beside plain calls. */
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#include "program.h"

static int sum_of_ones(MPI_Comm comm) {
  int one = 1, sum = 0;
  const int code = MPI_Allreduce(&one, &sum, 1, MPI_INT, MPI_SUM, comm);
  return code == MPI_SUCCESS ? sum : -code;
}

static void use_world(void) { EXPECT(sum_of_ones(MPI_COMM_WORLD) == size); }

/* The ranks ask for different counts, and get errors with gradred's text. */
static void disagree(void) {
  use_world();
  double data[8] = {0};
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  const int code = MPI_Allreduce(MPI_IN_PLACE, data, 4 + rank, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
  EXPECT(code != MPI_SUCCESS);
  char text[MPI_MAX_ERROR_STRING];
  int length = 0;
  EXPECT(MPI_Error_string(code, text, &length) == MPI_SUCCESS);
  if (rank == 0) printf("%s\n", text);
  use_world();
}

static int handled;
static void handle(MPI_Comm* comm, int* code, ...) {
  (void)comm;
  handled = *code;
}

static void disagree_with_handler(void) {
  use_world();
  MPI_Errhandler handler;
  MPI_Comm_create_errhandler(handle, &handler);
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, handler);
  double data[8] = {0};
  const int code = MPI_Allreduce(MPI_IN_PLACE, data, 4 + rank, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
  EXPECT(code != MPI_SUCCESS && handled == code);
  MPI_Errhandler_free(&handler);
  use_world();
}

static void disagree_fatally(void) {
  double data[8] = {0};
  use_world();
  MPI_Allreduce(MPI_IN_PLACE, data, 4 + rank, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
}

static void wrong_arguments(void) {
  use_world();
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  int one = 1, sum = 0;
  EXPECT(MPI_Allreduce(&one, &sum, -1, MPI_INT, MPI_SUM, MPI_COMM_WORLD) != MPI_SUCCESS);
  EXPECT(MPI_Allreduce(&one, &sum, 1, MPI_DATATYPE_NULL, MPI_SUM, MPI_COMM_WORLD) != 0);
  EXPECT(MPI_Bcast(&one, 1, MPI_INT, size, MPI_COMM_WORLD) != MPI_SUCCESS);
  use_world();
}

/* Rank 0 gets no result of an exclusive scan, and so may have no memory for it. */
static void no_memory_where_none_is_needed(void) {
  use_world();
  int one = 1, before = -1;
  EXPECT(MPI_Exscan(&one, rank == 0 ? NULL : &before, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD) == 0);
  EXPECT(before == (rank == 0 ? -1 : rank));
}

/* Rank 1 receives before it comes to the call in which rank 0 waits. */
static void send_before(void) {
  enum { kMany = 1 << 20 };
  static double data[kMany];
  use_world();
  MPI_Request request;
  if (rank == 0) MPI_Isend(data, kMany, MPI_DOUBLE, 1, 7, MPI_COMM_WORLD, &request);
  if (rank == 1) MPI_Recv(data, kMany, MPI_DOUBLE, 0, 7, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
  use_world();
  if (rank == 0) MPI_Wait(&request, MPI_STATUS_IGNORE);
}

static void many_communicators(void) {
  for (int time = 0; time < 400; ++time) {
    MPI_Comm some;
    MPI_Comm_split(MPI_COMM_WORLD, time % 3 == 0 ? rank % 2 : 0, time % 2 ? rank : -rank, &some);
    int members = 0;
    MPI_Comm_size(some, &members);
    for (int call = 0; call < 6; ++call) EXPECT(sum_of_ones(some) == members);
    MPI_Comm_free(&some);
  }
  use_world();
}

static void between_groups(void) {
  MPI_Comm half, between;
  MPI_Comm_split(MPI_COMM_WORLD, rank % 2, rank, &half);
  MPI_Intercomm_create(half, 0, MPI_COMM_WORLD, (rank + 1) % 2, 5, &between);
  int others = 0;
  MPI_Comm_remote_size(between, &others);
  for (int time = 0; time < 6; ++time) EXPECT(sum_of_ones(between) == others);
  MPI_Comm_free(&between);
  MPI_Comm_free(&half);
}

static void child_process(void) {
  use_world();
  const pid_t child = fork();
  if (child == 0) exit(5);
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT(WIFEXITED(status) && WEXITSTATUS(status) == 5);
  use_world();
}

enum { kThreads = 4 };
static MPI_Comm of_threads[kThreads];
static int wrong_sums;

static void* call_often(void* number) {
  MPI_Comm comm = of_threads[*(int*)number];
  for (int time = 0; time < 200; ++time) {
    if (sum_of_ones(comm) != size) ++wrong_sums;
  }
  return NULL;
}

static void threads(void) {
  int level = 0, numbers[kThreads];
  MPI_Query_thread(&level);
  EXPECT(level == MPI_THREAD_MULTIPLE);
  pthread_t all[kThreads];
  for (int i = 0; i < kThreads; ++i) MPI_Comm_dup(MPI_COMM_WORLD, &of_threads[i]);
  for (int i = 0; i < kThreads; ++i) {
    numbers[i] = i;
    pthread_create(&all[i], NULL, call_often, &numbers[i]);
  }
  for (int i = 0; i < kThreads; ++i) pthread_join(all[i], NULL);
  for (int i = 0; i < kThreads; ++i) MPI_Comm_free(&of_threads[i]);
  EXPECT(wrong_sums == 0);
}

static void finalize_with_others(void) {
  MPI_Comm copy; /* never freed */
  MPI_Comm_dup(MPI_COMM_WORLD, &copy);
  for (int time = 0; time < 6; ++time) EXPECT(sum_of_ones(copy) == size);
}

/* The operation ends in a function of the MPI, with the MPI's own among others. */
static void started_among_others(void) {
  use_world();
  for (int time = 0; time < 50; ++time) {
    int one = 1, sum = 0, got = -1, where = -1;
    MPI_Request all[3];
    MPI_Irecv(&got, 1, MPI_INT, (rank + size - 1) % size, 3, MPI_COMM_WORLD, &all[0]);
    MPI_Iallreduce(&one, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD, &all[1]);
    MPI_Isend(&rank, 1, MPI_INT, (rank + 1) % size, 3, MPI_COMM_WORLD, &all[2]);
    for (int i = 0; i < 3; ++i) {
      EXPECT(MPI_Waitany(3, all, &where, MPI_STATUS_IGNORE) == MPI_SUCCESS);
      EXPECT(where >= 0 && where < 3);
    }
    EXPECT(sum == size && got == (rank + size - 1) % size);
    MPI_Request request;
    MPI_Iallreduce(&one, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD, &request);
    for (int done = 0; !done;) MPI_Test(&request, &done, MPI_STATUS_IGNORE);
    EXPECT(sum == size && request == MPI_REQUEST_NULL);
  }
}

/* Rank 1 starts its call when rank 0 has sent, which rank 0 does after it has started. */
static void start_is_local(void) {
  MPI_Comm copy;
  MPI_Comm_dup(MPI_COMM_WORLD, &copy);
  for (int time = 0; time < 8; ++time) {
    int one = 1, sum = 0, message = 0;
    MPI_Request request;
    if (rank == 1) MPI_Recv(&message, 1, MPI_INT, 0, 3, copy, MPI_STATUS_IGNORE);
    MPI_Iallreduce(&one, &sum, 1, MPI_INT, MPI_SUM, copy, &request);
    if (rank == 0) MPI_Send(&message, 1, MPI_INT, 1, 3, copy);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    EXPECT(sum == size);
    EXPECT(sum_of_ones(copy) == size);
  }
  MPI_Comm_free(&copy);
}

static void end_at_once(void) {
  use_world();
  printf("rank %d of %d: %d checks passed\n", rank, size, checks);
  exit(0);
}

static void kill_one(void) {
  use_world();
  if (rank == 1) abort();
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  const int code = -sum_of_ones(MPI_COMM_WORLD);
  EXPECT(code > 0);
  char text[MPI_MAX_ERROR_STRING];
  int length = 0;
  MPI_Error_string(code, text, &length);
  printf("%s\n", text);
}

static void come_late(void) {
  use_world();
  if (rank == 1) sleep(3);
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  const int code = -sum_of_ones(MPI_COMM_WORLD);
  char text[MPI_MAX_ERROR_STRING];
  int length = 0;
  if (code > 0) MPI_Error_string(code, text, &length);
  if (rank == 0) printf("%s\n", code > 0 ? text : "no error");
}

static const struct {
  const char* name;
  void (*run)(void);
} kCases[] = {{"use_world", use_world},
              {"disagree", disagree},
              {"disagree_with_handler", disagree_with_handler},
              {"disagree_fatally", disagree_fatally},
              {"wrong_arguments", wrong_arguments},
              {"no_memory_where_none_is_needed", no_memory_where_none_is_needed},
              {"send_before", send_before},
              {"many_communicators", many_communicators},
              {"between_groups", between_groups},
              {"child_process", child_process},
              {"threads", threads},
              {"finalize_with_others", finalize_with_others},
              {"started_among_others", started_among_others},
              {"start_is_local", start_is_local},
              {"end_at_once", end_at_once},
              {"kill_one", kill_one},
              {"come_late", come_late}};

int main(int argc, char** argv) {
  const char* const wanted = argc > 1 ? argv[1] : "";
  if (strcmp(wanted, "threads") == 0) {
    int level = 0;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &level);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
  } else {
    begin(&argc, &argv);
  }
  for (unsigned i = 0; i < sizeof kCases / sizeof *kCases; ++i) {
    if (strcmp(kCases[i].name, wanted) != 0) continue;
    kCases[i].run();
    return end();
  }
  fprintf(stderr, "there is no case '%s'\n", wanted);
  MPI_Abort(MPI_COMM_WORLD, 2);
  return 2;
}
