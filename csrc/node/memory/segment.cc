#include "node/memory/segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <vector>

#include "base/errors.h"
#include "base/random.h"
#include "base/text.h"
#include "liveness/process.h"
#include "node/memory/memory_file.h"

namespace gradred {
namespace {

// What rank 0 sends to the others. Plain bytes, since it travels through the bootstrap.
struct Invitation {
  std::uint64_t token = 0;
  std::uint64_t program = 0;  // random number of this program
  ProcessId process;
  std::size_t bytes = 0;
  int fd = -1;
  const std::shared_ptr<Segment>* segment = nullptr;  // valid only in rank 0's process
  char error[160] = {};
};

struct Mapped {
  bool failed = false;
  char error[160] = {};
};

// Forked children have the same number as their parent, but another process number.
std::uint64_t program_number() {
  static const std::uint64_t number = random_number();
  return number;
}

std::shared_ptr<Segment> make(std::size_t bytes, std::uint64_t token) {
  const int fd = open_anonymous("gradred");
  if (fd < 0) throw TransportError(last_error("cannot create shared memory"));
  if (ftruncate(fd, static_cast<off_t>(bytes)) != 0) {
    const std::string error = last_error("cannot set the size of shared memory");
    close(fd);
    throw TransportError(error);
  }
  auto segment = std::make_shared<Segment>(fd, bytes);
  segment->populate(0, Segment::kProofBytes);
  std::memcpy(segment->data(), &token, sizeof token);
  return segment;
}

// Process numbers may be the same in different containers, so the content of the file is checked.
std::shared_ptr<Segment> accept(const Invitation& invitation) {
  if (invitation.program == program_number() && invitation.process == this_process()) {
    return *invitation.segment;
  }
  const std::string path =
      "/proc/" + std::to_string(invitation.process.pid) + "/fd/" + std::to_string(invitation.fd);
  File file(open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (!file) throw TransportError(last_error("cannot open rank 0's memory " + path));
  struct stat status{};
  std::uint64_t token = 0;
  if (fstat(file.fd(), &status) != 0 || !S_ISREG(status.st_mode) ||
      status.st_size != static_cast<off_t>(invitation.bytes) ||
      pread(file.fd(), &token, sizeof token, 0) != sizeof token || token != invitation.token) {
    throw TransportError(
        "rank 0's process number means another process here (separate containers?)");
  }
  return std::make_shared<Segment>(file.release(), invitation.bytes);
}

template <class T>
std::vector<T> gather(Bootstrap& bootstrap, const T& mine) {
  std::vector<T> all(static_cast<std::size_t>(bootstrap.size()));
  bootstrap.allgather(&mine, sizeof mine, all.data());
  return all;
}

}  // namespace

Segment::Segment(int fd, std::size_t bytes)
    : file_(fd), data_(map_shared(fd, bytes)), bytes_(bytes) {
  // Most addresses have no memory, and a core dump would allocate it.
  madvise(data_, bytes_, MADV_DONTDUMP);
}

Segment::~Segment() { munmap(data_, bytes_); }

std::uint64_t Segment::token() const {
  std::uint64_t seen = 0;
  std::memcpy(&seen, data_, sizeof seen);
  return seen;
}

void Segment::populate(std::size_t begin, std::size_t bytes) const {
  allocate(file_, data_ + begin, begin, bytes);
}

void Segment::release(std::size_t begin, std::size_t bytes) const noexcept {
  // If this fails, the memory is freed with the segment.
  [[maybe_unused]] const int failed =
      fallocate(file_.fd(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(begin),
                static_cast<off_t>(bytes));
}

std::shared_ptr<Segment> Segment::create(Bootstrap& bootstrap, std::size_t bytes,
                                         std::string& reason) {
  const bool leads = bootstrap.rank() == 0;
  std::shared_ptr<Segment> segment;
  Invitation invitation;
  Mapped mine;
  if (leads) {
    bytes = (bytes + kHugePage - 1) / kHugePage * kHugePage;
    invitation = {random_number(), program_number(), this_process(), bytes, -1, &segment, {}};
    try {
      segment = make(bytes, invitation.token);
      invitation.fd = segment->fd();
    } catch (const std::exception& error) {
      set_text(invitation.error, error.what());
    }
  }
  const Invitation first = gather(bootstrap, invitation).front();
  if (first.error[0] == '\0' && !leads) {
    try {
      segment = accept(first);
    } catch (const std::exception& error) {
      mine.failed = true;
      set_text(mine.error, error.what());
    }
  }
  if (first.error[0] != '\0') {
    reason = "rank 0: " + std::string(first.error);
    return nullptr;
  }
  const auto all = gather(bootstrap, mine);  // after it, all have mapped the segment or never will
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    if (!all[rank].failed) continue;
    reason = "rank " + std::to_string(rank) + ": " + all[rank].error;
    return nullptr;
  }
  check(segment->token() == first.token, "the mapping shows the memory that was checked");
  return segment;
}

}  // namespace gradred
