// Ranks that end early, and what the others get.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

#include "base/errors.h"
#include "comm/shutdown_handshake.h"
#include "program.h"

namespace gradred::testing {
namespace {

void add_ones(Communicator& comm) {
  PlainWait hook;
  std::vector<float> ones(1000, 1.0F), result(1000);
  comm.run({.send = ones.data(), .recv = result.data(), .count = 1000, .dtype = DType::kFloat32},
           hook);
  expect(result == std::vector<float>(1000, static_cast<float>(comm.size())), "another sum");
}

// The next call raises such an error; says after how long.
template <class Expected>
void expect_error(Communicator& comm, const char* name) {
  const auto begin = std::chrono::steady_clock::now();
  try {
    add_ones(comm);
  } catch (const Expected& error) {
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
    std::printf("rank %d: %s after %.2f s: %s\n", comm.rank(), name, seconds.count(), error.what());
    std::fflush(stdout);
    return;
  }
  throw std::runtime_error("the call has returned");
}

}  // namespace

void lose_a_rank(const Library&) {
  const auto comm = Communicator::of(mpi::get().is.comm_world);
  add_ones(*comm);
  if (comm->rank() == 1) {
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    kill(getpid(), SIGKILL);
  }
  expect_error<PeerLost>(*comm, "PeerLost");
}

void come_late(const Library&) {
  const auto comm = Communicator::of(mpi::get().is.comm_world);
  add_ones(*comm);
  if (comm->rank() == 1) std::this_thread::sleep_for(std::chrono::seconds(2));
  expect_error<TimeoutError>(*comm, "TimeoutError");
}

void leave_early(const Library&) {
  const auto comm = Communicator::of(mpi::get().is.comm_world);
  add_ones(*comm);
  if (comm->rank() == 1) {
    set_exit_reason("it has found no file");
    throw std::runtime_error("it has found no file");
  }
  expect_error<PeerLost>(*comm, "PeerLost");
}

void fork_a_child(const Library&) {
  const auto comm = Communicator::of(mpi::get().is.comm_world);
  add_ones(*comm);
  const pid_t child = fork();
  if (child == 0) {
    try {
      Communicator::of(mpi::get().is.comm_world);
    } catch (const UsageError& error) {
      std::printf("child of rank %d: %s\n", comm->rank(), error.what());
      std::fflush(stdout);
      std::exit(0);  // what the parent has asked for at its exit is none of the child's
    }
    std::exit(1);
  }
  int status = 0;
  waitpid(child, &status, 0);
  expect(WIFEXITED(status) && WEXITSTATUS(status) == 0, "the child may communicate");
  add_ones(*comm);
}

}  // namespace gradred::testing
