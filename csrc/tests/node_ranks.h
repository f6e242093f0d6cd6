// Ranks of a node group for tests: forked processes, or threads of this process.
#pragma once

#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <functional>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include "node/group/group.h"

namespace gradred::testing {

enum class Ranks { kThreads, kProcesses };

// Memory that all ranks share, for the bootstrap and for reports of failures.
struct Board {
  static constexpr int kMaxRanks = 64;
  static constexpr std::size_t kCell = 512;

  pthread_barrier_t barrier;
  std::byte cells[kMaxRanks][kCell];
  char failure[kMaxRanks][kCell];  // empty: no failure
};

class BoardBootstrap final : public Bootstrap {
 public:
  BoardBootstrap(Board& board, int rank, int size) : board_(board), rank_(rank), size_(size) {}
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  void barrier() override { pthread_barrier_wait(&board_.barrier); }
  void allgather(const void* mine, std::size_t bytes, void* all) override {
    check(bytes <= Board::kCell, "the board's cells are large enough");
    std::memcpy(board_.cells[rank_], mine, bytes);
    barrier();
    for (int rank = 0; rank < size_; ++rank) {
      std::memcpy(static_cast<std::byte*>(all) + static_cast<std::size_t>(rank) * bytes,
                  board_.cells[rank], bytes);
    }
    barrier();
  }

 private:
  Board& board_;
  int rank_, size_;
};

class Failed : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

inline void expect(bool condition, const std::string& what) {
  if (!condition) throw Failed(what);
}

using Body = std::function<void(BoardBootstrap&)>;

// Runs `body` on every rank, and returns the failures, one line each. A rank killed by SIGKILL does
// not count as a failure, as tests kill ranks. A rank that runs longer than `seconds` does.
inline std::string run_ranks(Ranks kind, int size, const Body& body, unsigned seconds = 60) {
  void* memory =
      mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  Board& board = *new (memory) Board{};
  pthread_barrierattr_t shared;
  pthread_barrierattr_init(&shared);
  pthread_barrierattr_setpshared(&shared, PTHREAD_PROCESS_SHARED);
  pthread_barrier_init(&board.barrier, &shared, static_cast<unsigned>(size));

  const auto run = [&](int rank) {
    try {
      BoardBootstrap bootstrap(board, rank, size);
      body(bootstrap);
    } catch (const std::exception& error) {
      std::snprintf(board.failure[rank], Board::kCell, "rank %d: %s", rank, error.what());
    }
  };
  std::string failures;
  if (kind == Ranks::kThreads) {
    std::vector<std::thread> threads;
    for (int rank = 0; rank < size; ++rank) threads.emplace_back(run, rank);
    for (auto& thread : threads) thread.join();
  } else {
    std::vector<pid_t> children;
    std::fflush(stdout);
    for (int rank = 0; rank < size; ++rank) {
      const pid_t child = fork();
      if (child == 0) {
        alarm(seconds);
        run(rank);
        _exit(0);
      }
      children.push_back(child);
    }
    for (const pid_t child : children) {
      int status = 0;
      waitpid(child, &status, 0);
      if (WIFEXITED(status) && WEXITSTATUS(status) != 0) {
        failures += "a rank ended with status " + std::to_string(WEXITSTATUS(status)) + "\n";
      }
      if (WIFSIGNALED(status) && WTERMSIG(status) != SIGKILL) {
        failures += "a rank ended by signal " + std::to_string(WTERMSIG(status)) + "\n";
      }
    }
  }
  for (int rank = 0; rank < size; ++rank) {
    if (board.failure[rank][0] != '\0') failures += std::string(board.failure[rank]) + "\n";
  }
  pthread_barrier_destroy(&board.barrier);
  munmap(memory, sizeof(Board));
  return failures;
}

inline std::unique_ptr<NodeGroup> make_group(BoardBootstrap& bootstrap,
                                             const NodeOptions& options) {
  std::string reason;
  auto group = NodeGroup::create(bootstrap, options, reason);
  expect(group != nullptr, "no group: " + reason);
  return group;
}

inline bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

class Report {
 public:
  explicit Report(std::string part) : part_(std::move(part)) {}
  // Runs the test if its name contains the requested part.
  void operator()(const std::string& name, const std::function<std::string()>& test) {
    if (!contains(name, part_)) return;
    const std::string failures = test();
    ++(failures.empty() ? passed_ : failed_);
    if (!failures.empty()) std::printf("FAILED %s\n%s", name.c_str(), failures.c_str());
  }
  int finish() const {
    std::printf("%d passed, %d failed\n", passed_, failed_);
    return failed_ == 0 && passed_ > 0 ? 0 : 1;
  }

 private:
  std::string part_;
  int passed_ = 0, failed_ = 0;
};

inline const char* name_of(Ranks kind) { return kind == Ranks::kThreads ? "threads" : "processes"; }

// Returns a function that runs a test on ranks of one kind.
inline auto on_ranks(Report& report, Ranks kind) {
  return [&report, kind](int size, const std::string& name, const Body& body) {
    report(name + " [" + name_of(kind) + ", p=" + std::to_string(size) + "]",
           [&] { return run_ranks(kind, size, body); });
  };
}

}  // namespace gradred::testing
