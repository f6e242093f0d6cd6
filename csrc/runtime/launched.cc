#include "runtime/launched.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <span>
#include <sstream>
#include <string>

#include "liveness/failure_board.h"
#include "liveness/supervisor.h"
#include "runtime/environment.h"

namespace gradred {
namespace {

std::span<const char> map(const std::string& path) {
  const int file = open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  if (file < 0) return {};
  struct stat found{};
  void* memory = MAP_FAILED;
  if (fstat(file, &found) == 0 && S_ISREG(found.st_mode) && found.st_size > 0) {
    memory = mmap(nullptr, static_cast<std::size_t>(found.st_size), PROT_READ, MAP_SHARED, file, 0);
  }
  close(file);
  if (memory == MAP_FAILED) return {};
  return {static_cast<const char*>(memory), static_cast<std::size_t>(found.st_size)};
}

// Maps the page if it is the right one. The descriptor's number may belong to another file by now,
// or a rank in a container may not reach it. src/gradred/launch/failure_board.py sets the variable.
void find_failure_board(const std::string& where) {
  std::istringstream fields(where);
  long process = 0;
  int number = 0;
  std::string token;
  if (!(fields >> process >> number >> token)) return;
  const std::span<const char> page =
      map("/proc/" + std::to_string(process) + "/fd/" + std::to_string(number));
  if (page.empty() || use_failure_board(page, token)) return;
  munmap(const_cast<char*>(page.data()), page.size());
}

void find_pipe(const std::string& where) {
  std::istringstream fields(where);
  int pipe = -1;
  ino_t inode = 0;
  if (fields >> pipe >> inode) use_supervisor(pipe, inode);
}

}  // namespace

void find_supervisor() {
  find_pipe(variable("_GRADRED_SUPERVISOR"));  // set by src/gradred/launch/rank_pipe.py
  find_failure_board(variable("_GRADRED_FAILURE_BOARD"));
}

void use_launcher(const std::string& pipe, const std::string& board) {
  find_pipe(pipe);
  find_failure_board(board);
  use_launcher_for_failures();
}

}  // namespace gradred
