#include "node/memory_file.h"

#include <fcntl.h>
#include <linux/memfd.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstring>

#include "base/errors.h"
#include "base/random.h"

namespace gradred {

std::string last_error(const std::string& what) { return what + ": " + std::strerror(errno); }

int open_anonymous(const char* name) {
  // The kernel's call itself: glibc 2.17, which wheels are built for, has no function for it.
  const auto fd = static_cast<int>(syscall(SYS_memfd_create, name, MFD_CLOEXEC));
  if (fd >= 0) return fd;
  char path[64];
  std::snprintf(path, sizeof path, "/gradred-%d-%016llx", static_cast<int>(getpid()),
                static_cast<unsigned long long>(random_number()));
  const int named = shm_open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, S_IRUSR | S_IWUSR);
  if (named >= 0) shm_unlink(path);
  return named;
}

// Huge pages need an address that is a multiple of theirs: map where a larger reservation holds
// one.
std::byte* map_shared(int fd, std::size_t bytes) {
  void* reserved = mmap(nullptr, bytes + kHugePage, PROT_NONE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (reserved == MAP_FAILED) throw TransportError(last_error("cannot reserve addresses"));
  auto* const start = static_cast<std::byte*>(reserved);
  const std::size_t ahead =
      (kHugePage - reinterpret_cast<std::uintptr_t>(start) % kHugePage) % kHugePage;
  if (mmap(start + ahead, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) ==
      MAP_FAILED) {
    const std::string error = last_error("cannot map shared memory");
    munmap(start, bytes + kHugePage);
    throw TransportError(error);
  }
  if (ahead > 0) munmap(start, ahead);
  if (ahead < kHugePage) munmap(start + ahead + bytes, kHugePage - ahead);
  madvise(start + ahead, bytes, MADV_HUGEPAGE);  // a wish: its failure costs little
  return start + ahead;
}

// Populating gives huge pages where the mapping may have them; kernels before 5.14 only allocate.
void allocate(const File& file, std::byte* data, std::size_t offset, std::size_t bytes) {
  constexpr int kPopulateWrite = 23;  // MADV_POPULATE_WRITE, which older headers lack
  if (madvise(data, bytes, kPopulateWrite) == 0) return;
  if (errno == EINVAL &&
      fallocate(file.fd(), 0, static_cast<off_t>(offset), static_cast<off_t>(bytes)) == 0) {
    return;
  }
  throw TransportError(
      last_error("cannot get " + std::to_string(bytes >> 10) + " KiB of shared memory"));
}

}  // namespace gradred
