// What a rank writes to its supervisor and to no other file, and what it reads of the supervisor's.
#include "liveness/supervisor.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <string>
#include <string_view>

#include "expect.h"
#include "liveness/failure_board.h"

namespace {

using gradred::Failure;
using gradred::FailureReport;
using gradred::testing::expect;

struct Pipe {
  int reads = -1, writes = -1;

  Pipe() {
    std::array<int, 2> ends{};
    expect(pipe2(ends.data(), O_NONBLOCK) == 0, "there is a pipe");
    reads = ends[0], writes = ends[1];
    struct stat found{};
    fstat(writes, &found);
    gradred::use_supervisor(writes, found.st_ino);
  }
  ~Pipe() {
    close(reads);
    close(writes);
  }
  std::string received() const {
    std::array<char, 1000> text{};
    const auto bytes = read(reads, text.data(), text.size());
    return bytes > 0 ? std::string(text.data(), static_cast<std::size_t>(bytes)) : "";
  }
};

void test_lines() {
  const Pipe pipe;
  const std::array ended = {4, 17};
  gradred::tell_survived(ended);
  expect(pipe.received() == "ended 4 17\n", "those that have ended are named by their numbers");
  gradred::tell_survived({});
  expect(pipe.received().empty(), "that none has ended is no news");
  gradred::tell_left_out(ended);
  gradred::tell_left_out({});
  expect(pipe.received() == "without 4 17\nwithout\n", "that none is left out any more is news");
  gradred::tell_finalize("enters");
  expect(pipe.received() == "finalize enters\n", "MPI_Finalize is reported");
  gradred::tell_leaving(true, FailureReport{Failure::kPeerLost, "rank 1\nhas ended"});
  const std::string received = pipe.received();
  expect(received.starts_with("follows 1") && received.ends_with(" 1 rank 1 has ended\n"),
         "a report is one line");
  gradred::tell_leaving(false, std::nullopt);
  expect(pipe.received().starts_with("leaves 1"), "a rank that has seen no failure says so");
}

void test_closed_pipe_whose_number_is_used_again() {
  Pipe pipe;
  const Pipe other;  // not the supervisor's pipe
  struct stat found{};
  fstat(pipe.writes, &found);
  gradred::use_supervisor(pipe.writes, found.st_ino);
  dup2(other.writes, pipe.writes);
  gradred::tell_finalize("enters");
  expect(other.received().empty(), "another file that has the number of the pipe gets nothing");
  close(pipe.writes);
  gradred::tell_finalize("enters");
  pipe.writes = -1;
}

void test_supervisor_that_has_ended() {
  Pipe pipe;
  close(pipe.reads);
  gradred::tell_finalize("enters");  // must not raise SIGPIPE
  pipe.reads = -1;
}

// Writes the page as src/gradred/launch/failure_board.py does.
void test_failure_board() {
  static std::array<char, 8192> page{};
  std::size_t end = 0;
  const auto write = [&](std::string_view text) {
    std::ranges::copy(text, page.begin() + static_cast<std::ptrdiff_t>(end));
    end += text.size();
  };
  write("name\n");
  expect(!gradred::use_failure_board(page, "another"), "a page is known by its first line");
  expect(gradred::use_failure_board(page, "name"), "the supervisor's page is found");
  const std::array world = {5, 7, 2};
  expect(!gradred::any_rank_failed() && !gradred::failure_among(world), "no rank has failed");
  write("7\ton h2 was killed by SIGKILL\t");
  expect(!gradred::failure_among(world), "a line counts once it ends");
  write("\n2\thas ended\t2 late: a rank\n");
  expect(gradred::any_rank_failed(), "a rank has failed");
  const auto failure = gradred::failure_among(world);
  expect(failure && failure->first == 1 && failure->second == "on h2 was killed by SIGKILL",
         "the first that has failed is named by its place, and how");
  const auto report = gradred::report_among(world);
  expect(report && report->kind == Failure::kTimeout && report->text == "late: a rank",
         "the first report is shown");
  expect(gradred::failures_among(world) == std::vector{1, 2}, "all are named by their places");
  expect(!gradred::failure_among(std::array{1}), "of other ranks nothing is reported");
}

}  // namespace

int main() {
  test_failure_board();
  test_lines();
  test_closed_pipe_whose_number_is_used_again();
  test_supervisor_that_has_ended();
  return gradred::testing::report("supervisor");
}
