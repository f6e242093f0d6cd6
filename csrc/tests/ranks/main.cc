// mpiexec -n 3 core_ranks LIBRARY CASE: tests the core with MPI, without Python.
//
// LIBRARY is the path of the MPI library to which mpiexec belongs. Exit status 0: this rank has
// seen and reported what it should. 1: it has not. 2: the knobs are invalid.
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
    {"calls", make_all_calls},        {"devices", make_calls_on_devices},
    {"named", make_named_operations}, {"lost", lose_a_rank},
    {"leaves", leave_early},          {"late", come_late},
    {"forks", fork_a_child},          {"steady", count_steady_calls},
    {"messages", send_messages}};

// CASE:KIND, for calls that MPI carries out.
const std::map<std::string, void (*)(Kind)> kCasesOnMpi = {{"lost", lose_a_rank_on_mpi},
                                                           {"late", come_late_on_mpi}};
const std::map<std::string, Kind> kKinds = {{"bcast", Kind::kBcast},
                                            {"allgather", Kind::kAllgather},
                                            {"reduce_scatter_block", Kind::kReduceScatterBlock}};

void run_case(const Library& mpi, const std::string& name) {
  const std::size_t colon = name.find(':');
  if (colon == std::string::npos) return kCases.at(name)(mpi);
  kCasesOnMpi.at(name.substr(0, colon))(kKinds.at(name.substr(colon + 1)));
}

int run(const Library& mpi, const std::string& name) {
  constexpr int kThreadMultiple = 3;  // the same in every MPI
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
    run_case(mpi, name);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "failed: %s\n", error.what());
    status = 1;
  }
  finalize();
  return status;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(
        stderr,
        "usage: core_ranks LIBRARY calls|devices|named|lost|leaves|late|forks|steady|messages\n"
        "       core_ranks LIBRARY lost:KIND|late:KIND\n");
    return 1;
  }
  return run(Library(argv[1]), argv[2]);
}
