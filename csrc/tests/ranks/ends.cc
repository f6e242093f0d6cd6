// Ranks that end early, and the errors that the other ranks get.
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
  comm.run({.in = {ones.data()}, .out = {result.data()}, .count = 1000, .dtype = DType::kFloat32},
           hook);
  expect(result == std::vector<float>(1000, static_cast<float>(comm.size())), "another sum");
}

// A call by plan "mpi", with memory for the arrays of any kind. The other ranks need data from rank
// 1.
class OnMpi {
 public:
  OnMpi(Kind kind, Communicator& comm)
      : comm_(comm), send_(kCount * static_cast<std::size_t>(comm.size()), 1.0F), recv_(send_) {
    call_ = {.kind = kind, .in = {send_.data()}, .out = {recv_.data()}, .count = kCount};
    call_.dtype = DType::kFloat32;
    call_.root = kind == Kind::kBcast ? 1 : 0;
    call_.plan = "mpi";
  }
  void run() {
    PlainWait hook;
    comm_.run(call_, hook);
  }
  // Agrees on the call but does not make it. The other ranks enter MPI's own call.
  void only_agree() {
    PlainWait hook;
    const auto plan = comm_.choice().plan_for(call_, true);
    comm_.agree(planned_signature(call_, *plan), hook);
  }

 private:
  static constexpr std::size_t kCount = 1000;

  Communicator& comm_;
  std::vector<float> send_, recv_;
  Call call_;
};

// The call must raise this error. Prints the time that it took.
template <class Expected, class Make>
void expect_error_of(Communicator& comm, const char* name, Make make) {
  const auto begin = std::chrono::steady_clock::now();
  try {
    make();
  } catch (const Expected& error) {
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
    std::printf("rank %d: %s after %.2f s: %s\n", comm.rank(), name, seconds.count(), error.what());
    std::fflush(stdout);
    return;
  }
  throw std::runtime_error("the call has returned");
}

template <class Expected>
void expect_error(Communicator& comm, const char* name) {
  expect_error_of<Expected>(comm, name, [&] { add_ones(comm); });
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

void lose_a_rank_on_mpi(Kind kind) {
  const auto comm = Communicator::of(mpi::get().is.comm_world);
  OnMpi call(kind, *comm);
  call.run();
  if (comm->rank() == 1) {
    call.only_agree();
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    kill(getpid(), SIGKILL);
  }
  expect_error_of<PeerLost>(*comm, "PeerLost", [&] { call.run(); });
}

void come_late_on_mpi(Kind kind) {
  const auto comm = Communicator::of(mpi::get().is.comm_world);
  OnMpi call(kind, *comm);
  call.run();
  if (comm->rank() == 1) {
    call.only_agree();
    std::this_thread::sleep_for(std::chrono::seconds(2));
    return;
  }
  expect_error_of<TimeoutError>(*comm, "TimeoutError", [&] { call.run(); });
}

void leave_early(const Library&) {
  const auto comm = Communicator::of(mpi::get().is.comm_world);
  add_ones(*comm);
  if (comm->rank() == 1) {
    set_exit_reason("it has found no file", false);
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
      std::exit(0);  // the child must not run the parent's exit functions
    }
    std::exit(1);
  }
  int status = 0;
  waitpid(child, &status, 0);
  expect(WIFEXITED(status) && WEXITSTATUS(status) == 0, "the child may communicate");
  add_ones(*comm);
}

}  // namespace gradred::testing
