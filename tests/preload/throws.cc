// An error handler that throws, as those of C++ programs may.
#include <mpi.h>

#include <cstdio>
#include <stdexcept>

namespace {

void raise(MPI_Comm*, int* code, ...) {
  char text[MPI_MAX_ERROR_STRING];
  int length = 0;
  MPI_Error_string(*code, text, &length);
  throw std::runtime_error(text);
}

int sum_of_ones() {
  int one = 1, sum = 0;
  MPI_Allreduce(&one, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  return sum;
}

}  // namespace

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank = 0, size = 0, caught = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  bool right = sum_of_ones() == size;
  MPI_Errhandler handler;
  MPI_Comm_create_errhandler(raise, &handler);
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, handler);
  double data[8] = {};
  try {
    MPI_Allreduce(MPI_IN_PLACE, data, 4 + rank, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
  } catch (const std::runtime_error& error) {
    ++caught;
    if (rank == 0) std::printf("caught %s\n", error.what());
  }
  right = right && caught == 1 && sum_of_ones() == size;
  MPI_Finalize();
  std::printf("%s\n", right ? "checks passed" : "wrong");
  return right ? 0 : 1;
}
