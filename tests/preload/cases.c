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

/* MPI defines logical operations of MPI_C_BOOL alone. */
static void wrong_operation_of_truths(void) {
  use_world();
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  const MPI_Op undefined[] = {MPI_MIN, MPI_MAX, MPI_BAND, MPI_BOR, MPI_BXOR};
  _Bool mine = rank == 0, both = 0;
  for (int i = 0; i < 5; ++i) {
    EXPECT(MPI_Allreduce(&mine, &both, 1, MPI_C_BOOL, undefined[i], MPI_COMM_WORLD) != 0);
  }
  EXPECT(MPI_Allreduce(&mine, &both, 1, MPI_C_BOOL, MPI_LOR, MPI_COMM_WORLD) == MPI_SUCCESS);
  EXPECT(both);
}

/* The handler of another communicator has nothing to do with it. */
static void wrong_type_on_a_copy(void) {
  MPI_Comm copy;
  MPI_Comm_dup(MPI_COMM_WORLD, &copy);
  MPI_Comm_set_errhandler(copy, MPI_ERRORS_RETURN);
  for (int time = 0; time < 6; ++time) EXPECT(sum_of_ones(copy) == size);
  MPI_Errhandler handler;
  MPI_Comm_create_errhandler(handle, &handler);
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, handler);
  MPI_Comm_set_errhandler(MPI_COMM_SELF, handler);
  int one = 1, all[8];
  EXPECT(MPI_Bcast(&one, 1, MPI_DATATYPE_NULL, 0, copy) != MPI_SUCCESS);
  EXPECT(MPI_Allgather(&one, 1, MPI_DATATYPE_NULL, all, 1, MPI_INT, copy) != MPI_SUCCESS);
  EXPECT(handled == MPI_SUCCESS);
}

static void no_call(void) { EXPECT(size == 2); }

/* An attribute's function runs inside MPI_Finalize, where calls are still allowed. */
static int sum_at_the_end(MPI_Comm comm, int key, void* value, void* extra) {
  (void)comm, (void)key, (void)value, (void)extra;
  use_world();
  return MPI_SUCCESS;
}

static void call_in_finalize(void) {
  use_world();
  int key = 0;
  MPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, sum_at_the_end, &key, NULL);
  MPI_Comm_set_attr(MPI_COMM_SELF, key, NULL);
}

/* An absolute address in the type, and none in the call; handles that are used again. */
static void types_with_addresses(void) {
  for (int time = 0; time < 20; ++time) {
    int first = rank, second[3] = {rank, rank, rank}, gathered[16] = {0};
    MPI_Aint places[2];
    MPI_Get_address(&first, &places[0]);
    MPI_Get_address(second, &places[1]);
    const int lengths[2] = {1, 1 + time % 3};
    MPI_Datatype type;
    MPI_Type_create_hindexed(2, lengths, places, MPI_INT, &type);
    MPI_Type_commit(&type);
    EXPECT(MPI_Allgather(MPI_BOTTOM, 1, type, gathered, 2 + time % 3, MPI_INT, MPI_COMM_WORLD) ==
           MPI_SUCCESS);
    EXPECT(gathered[(2 + time % 3) * (size - 1)] == size - 1);
    EXPECT(MPI_Bcast(MPI_BOTTOM, 1, type, size - 1, MPI_COMM_WORLD) == MPI_SUCCESS);
    EXPECT(first == size - 1 && second[time % 3] == size - 1);
    EXPECT(time % 3 == 2 || second[2] == rank);
    MPI_Type_free(&type);
  }
}

static void no_elements(void) {
  use_world();
  MPI_Datatype empty;
  MPI_Type_contiguous(0, MPI_INT, &empty);
  MPI_Type_commit(&empty);
  MPI_Comm world = MPI_COMM_WORLD;
  EXPECT(MPI_Allreduce(NULL, NULL, 0, MPI_INT, MPI_SUM, world) == MPI_SUCCESS);
  EXPECT(MPI_Allgather(NULL, 0, MPI_INT, NULL, 7, empty, world) == MPI_SUCCESS);
  int value = rank;
  EXPECT(MPI_Bcast(&value, rank ? 0 : 7, rank ? MPI_INT : empty, 0, world) == MPI_SUCCESS);
  EXPECT(value == rank);
  MPI_Type_free(&empty);
  use_world();
}

/* Communicators and requests of sessions, beside MPI_Init or without it. */
static void sessions(void) {
#if MPI_VERSION >= 4
  for (int time = 0; time < 3; ++time) {
    MPI_Session session;
    MPI_Group group;
    MPI_Comm comm;
    int members = 0;
    MPI_Session_init(MPI_INFO_NULL, MPI_ERRORS_RETURN, &session);
    MPI_Group_from_session_pset(session, "mpi://WORLD", &group);
    MPI_Comm_create_from_group(group, "sums", MPI_INFO_NULL, MPI_ERRORS_RETURN, &comm);
    MPI_Comm_rank(comm, &rank);
    MPI_Comm_size(comm, &members);
    size = members;
    for (int call = 0; call < 10; ++call) EXPECT(sum_of_ones(comm) == members);
    MPI_Comm_free(&comm);
    MPI_Group_free(&group);
    MPI_Session_finalize(&session);
  }
#endif
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
              {"wrong_operation_of_truths", wrong_operation_of_truths},
              {"wrong_type_on_a_copy", wrong_type_on_a_copy},
              {"no_call", no_call},
              {"call_in_finalize", call_in_finalize},
              {"types_with_addresses", types_with_addresses},
              {"no_elements", no_elements},
              {"sessions", sessions},
              {"only_sessions", sessions},
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
  } else if (strcmp(wanted, "only_sessions") != 0) {
    begin(&argc, &argv);
  }
  for (unsigned i = 0; i < sizeof kCases / sizeof *kCases; ++i) {
    if (strcmp(kCases[i].name, wanted) != 0) continue;
    kCases[i].run();
    int initialized = 0;
    MPI_Initialized(&initialized);
    return end_if(initialized);
  }
  fprintf(stderr, "there is no case '%s'\n", wanted);
  MPI_Abort(MPI_COMM_WORLD, 2);
  return 2;
}
