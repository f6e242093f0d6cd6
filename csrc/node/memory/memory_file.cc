#include "node/memory/memory_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstring>

#include "base/errors.h"
#include "base/memory_files.h"
#include "base/random.h"

namespace gradred {

std::string last_error(const std::string& what) { return what + ": " + std::strerror(errno); }

int open_anonymous(const char* name) {
  const int fd = make_memory_file(name);
  if (fd >= 0) return fd;
  char path[64];
  std::snprintf(path, sizeof path, "/gradred-%d-%016llx", static_cast<int>(getpid()),
                static_cast<unsigned long long>(random_number()));
  const int named = shm_open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, S_IRUSR | S_IWUSR);
  if (named >= 0) shm_unlink(path);
  return named;
}

// Huge pages need an address that is a multiple of their size. So the file is mapped at such an
// address within a larger reservation.
std::byte* try_to_map(int fd, std::size_t bytes, int protection) {
  void* reserved = mmap(nullptr, bytes + kHugePage, PROT_NONE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (reserved == MAP_FAILED) return nullptr;
  auto* const start = static_cast<std::byte*>(reserved);
  const std::size_t ahead =
      (kHugePage - reinterpret_cast<std::uintptr_t>(start) % kHugePage) % kHugePage;
  if (mmap(start + ahead, bytes, protection, MAP_SHARED | MAP_FIXED, fd, 0) == MAP_FAILED) {
    const int error = errno;
    munmap(start, bytes + kHugePage);
    errno = error;
    return nullptr;
  }
  if (ahead > 0) munmap(start, ahead);
  if (ahead < kHugePage) munmap(start + ahead + bytes, kHugePage - ahead);
  madvise(start + ahead, bytes, MADV_HUGEPAGE);  // a hint; its failure costs little
  return start + ahead;
}

std::byte* map_shared(int fd, std::size_t bytes) {
  std::byte* const mapped = try_to_map(fd, bytes, PROT_READ | PROT_WRITE);
  if (mapped == nullptr) throw TransportError(last_error("cannot map shared memory"));
  return mapped;
}

namespace {

constexpr int kPopulateWrite = 23, kCollapse = 25;  // of madvise(); older headers lack them

// Files get huge pages automatically only if the administrator has enabled that, which is rare.
// With this call any process may request them (since Linux 6.1): it touches a page in each huge
// page, then collapses the whole. This also takes less time than page by page. The function ends at
// the first refusal, since probably no huge page is free any more.
void ask_for_huge_pages(std::byte* data, std::size_t bytes) {
  const std::size_t ahead =
      (kHugePage - reinterpret_cast<std::uintptr_t>(data) % kHugePage) % kHugePage;
  for (std::size_t at = ahead; at + kHugePage <= bytes; at += kHugePage) {
    if (madvise(data + at, 1, kPopulateWrite) != 0) return;
    if (madvise(data + at, kHugePage, kCollapse) != 0) return;
  }
}

}  // namespace

// On kernels before 5.14 this allocates the pages without mapping them.
void allocate(const File& file, std::byte* data, std::size_t offset, std::size_t bytes) {
  ask_for_huge_pages(data, bytes);
  if (madvise(data, bytes, kPopulateWrite) == 0) return;
  if (errno == EINVAL &&
      fallocate(file.fd(), 0, static_cast<off_t>(offset), static_cast<off_t>(bytes)) == 0) {
    return;
  }
  throw TransportError(
      last_error("cannot get " + std::to_string(bytes >> 10) + " KiB of shared memory"));
}

}  // namespace gradred
