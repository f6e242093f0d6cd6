#include "node/memory/process_memory.h"

#include <sys/prctl.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>

namespace gradred {

int read_process(std::int64_t pid, void* target, const void* source, std::size_t bytes) noexcept {
  auto* to = static_cast<std::byte*>(target);
  const auto* from = static_cast<const std::byte*>(source);
  while (bytes > 0) {
    const iovec local{to, bytes}, remote{const_cast<std::byte*>(from), bytes};
    const ssize_t done = process_vm_readv(static_cast<pid_t>(pid), &local, 1, &remote, 1, 0);
    if (done < 0 && errno == EINTR) continue;
    if (done <= 0) return done < 0 ? errno : EFAULT;
    to += done;
    from += done;
    bytes -= static_cast<std::size_t>(done);
  }
  return 0;
}

bool kernel_can_read(const void* memory, std::size_t bytes) noexcept {
  const auto* const first = static_cast<const std::byte*>(memory);
  std::byte found{};
  return read_process(getpid(), &found, first, 1) == 0 &&
         read_process(getpid(), &found, first + bytes - 1, 1) == 0;
}

void allow_reading() noexcept {
#ifdef PR_SET_PTRACER
  prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);  // fails where Yama is not active
#endif
}

}  // namespace gradred
