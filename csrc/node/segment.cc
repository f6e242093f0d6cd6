#include "node/segment.h"

#include <fcntl.h>
#include <linux/memfd.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <vector>

#include "base/errors.h"
#include "base/random.h"
#include "base/text.h"
#include "node/process.h"

namespace gradred {
namespace {

constexpr std::size_t kHugePage = 2 << 20;

class File {
 public:
  explicit File(int fd) : fd_(fd) {}
  ~File() {
    if (fd_ >= 0) close(fd_);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  int fd() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }

 private:
  int fd_;
};

// What the leader tells the others. Plain bytes: it travels through the bootstrap.
struct Invitation {
  std::uint64_t token = 0;
  std::uint64_t program = 0;  // a random number of this process image
  ProcessId process;
  std::size_t bytes = 0;
  int fd = -1;
  const std::shared_ptr<Segment>* segment = nullptr;  // meaningful in the leader's process only
  char error[160] = {};
};

struct Verdict {
  bool failed = false;
  char error[160] = {};
};

std::string last_error(const std::string& what) { return what + ": " + std::strerror(errno); }

// Forked children share it with their parent, but not the process number.
std::uint64_t program_number() {
  static const std::uint64_t number = random_number();
  return number;
}

// Memory with a name nobody else can open, or none at all: whatever kills us, nothing is left
// behind.
int open_anonymous() {
  // The kernel's call itself: glibc 2.17, which wheels are built for, has no function for it.
  const auto fd = static_cast<int>(syscall(SYS_memfd_create, "gradred", MFD_CLOEXEC));
  if (fd >= 0) return fd;
  char name[64];
  std::snprintf(name, sizeof name, "/gradred-%d-%016llx", static_cast<int>(getpid()),
                static_cast<unsigned long long>(random_number()));
  const int named = shm_open(name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, S_IRUSR | S_IWUSR);
  if (named >= 0) shm_unlink(name);
  return named;
}

// Huge pages need an address that is a multiple of theirs: map where a larger reservation holds
// one.
std::shared_ptr<Segment> map(int fd, std::size_t bytes) {
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
  munmap(start + ahead + bytes, kHugePage - ahead);
  madvise(start + ahead, bytes, MADV_HUGEPAGE);  // a wish: its failure costs little
  return std::make_shared<Segment>(start + ahead, bytes);
}

// Reserve every page now: memory that is lacking must be an error here, not a SIGBUS later.
// Populating gives huge pages where the mapping may have them; kernels before 5.14 only allocate.
void populate(const File& file, const Segment& segment) {
  constexpr int kPopulateWrite = 23;  // MADV_POPULATE_WRITE, which older headers lack
  if (madvise(segment.data(), segment.bytes(), kPopulateWrite) == 0) return;
  if (errno == EINVAL && fallocate(file.fd(), 0, 0, static_cast<off_t>(segment.bytes())) == 0) {
    return;
  }
  throw TransportError(
      last_error("cannot get " + std::to_string(segment.bytes() >> 20) + " MiB of shared memory"));
}

std::shared_ptr<Segment> make(const File& file, std::size_t bytes, std::uint64_t token) {
  if (!file) throw TransportError(last_error("cannot create shared memory"));
  if (ftruncate(file.fd(), static_cast<off_t>(bytes)) != 0) {
    throw TransportError(last_error("cannot set the size of shared memory"));
  }
  auto segment = map(file.fd(), bytes);
  populate(file, *segment);
  std::memcpy(segment->data(), &token, sizeof token);
  return segment;
}

// Containers may number processes alike: what is found there is believed only after a look inside.
std::shared_ptr<Segment> accept(const Invitation& invitation) {
  if (invitation.program == program_number() && invitation.process == this_process()) {
    return *invitation.segment;
  }
  const std::string path =
      "/proc/" + std::to_string(invitation.process.pid) + "/fd/" + std::to_string(invitation.fd);
  const File file(open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (!file) throw TransportError(last_error("cannot open rank 0's memory " + path));
  struct stat status{};
  std::uint64_t token = 0;
  if (fstat(file.fd(), &status) != 0 || !S_ISREG(status.st_mode) ||
      status.st_size != static_cast<off_t>(invitation.bytes) ||
      pread(file.fd(), &token, sizeof token, 0) != sizeof token || token != invitation.token) {
    throw TransportError(
        "rank 0's process number means another process here (separate containers?)");
  }
  return map(file.fd(), invitation.bytes);
}

template <class T>
std::vector<T> gather(Bootstrap& bootstrap, const T& mine) {
  std::vector<T> all(static_cast<std::size_t>(bootstrap.size()));
  bootstrap.allgather(&mine, sizeof mine, all.data());
  return all;
}

}  // namespace

Segment::~Segment() { munmap(data_, bytes_); }

std::shared_ptr<Segment> Segment::create(Bootstrap& bootstrap, std::size_t bytes,
                                         std::string& reason) {
  const bool leads = bootstrap.rank() == 0;
  std::shared_ptr<Segment> segment;
  const File file(leads ? open_anonymous() : -1);  // open until all have mapped it
  Invitation invitation;
  Verdict verdict;
  if (leads) {
    bytes = (bytes + kHugePage - 1) / kHugePage * kHugePage;
    invitation = {
        random_number(), program_number(), this_process(), bytes, file.fd(), &segment, {}};
    try {
      segment = make(file, bytes, invitation.token);
    } catch (const std::exception& error) {
      set_text(invitation.error, error.what());
    }
  }
  const Invitation first = gather(bootstrap, invitation).front();
  if (first.error[0] == '\0' && !leads) {
    try {
      segment = accept(first);
    } catch (const std::exception& error) {
      verdict.failed = true;
      set_text(verdict.error, error.what());
    }
  }
  if (first.error[0] != '\0') {
    reason = "rank 0: " + std::string(first.error);
    return nullptr;
  }
  const auto verdicts = gather(bootstrap, verdict);  // also: all have mapped, or never will
  for (std::size_t rank = 0; rank < verdicts.size(); ++rank) {
    if (!verdicts[rank].failed) continue;
    reason = "rank " + std::to_string(rank) + ": " + verdicts[rank].error;
    return nullptr;
  }
  std::uint64_t seen = 0;
  std::memcpy(&seen, segment->data(), sizeof seen);
  check(seen == first.token, "the mapping shows the memory that was checked");
  return segment;
}

}  // namespace gradred
