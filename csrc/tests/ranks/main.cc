// mpiexec -n 3 core_ranks LIBRARY CASE: the core under an MPI, without Python.
//
// LIBRARY is the file of the MPI to which mpiexec belongs. Exit status 0: this rank has seen what
// it should, and said so; 1: it has not; 2: the knobs have no meaning.
#include <cstdio>
#include <cstring>
#include <exception>
#include <map>

#include "base/errors.h"
#include "program.h"

using namespace gradred;
using namespace gradred::testing;

namespace {

const std::map<std::string, void (*)(const Library&)> kCases = {
    {"calls", make_all_calls},     {"devices", make_calls_on_devices},
    {"lost", lose_a_rank},         {"leaves", leave_early},
    {"late", come_late},           {"forks", fork_a_child},
    {"steady", count_steady_calls}};

int run(const Library& mpi, const std::string& name) {
  constexpr int kThreadMultiple = 3;  // in every family
  int provided = 0;
  mpi.call("MPI_Init_thread", static_cast<int*>(nullptr), static_cast<char***>(nullptr),
           kThreadMultiple, &provided);
  try {
    begin(mpi.handle());
  } catch (const UsageError& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 2;
  }
  int status = 0;
  try {
    kCases.at(name)(mpi);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "failed: %s\n", error.what());
    status = 1;
  }
  finalize();
  return status;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3 || !kCases.contains(argv[2])) {
    std::fprintf(stderr, "usage: core_ranks LIBRARY calls|devices|lost|leaves|late|forks|steady\n");
    return 1;
  }
  return run(Library(argv[1]), argv[2]);
}
