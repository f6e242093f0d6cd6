// Memory as a file that nobody can find by name: what processes share, and what lies in it.
#pragma once

#include <unistd.h>

#include <cstddef>
#include <string>
#include <utility>

namespace gradred {

inline constexpr std::size_t kHugePage = 2 << 20;

class File {
 public:
  explicit File(int fd) : fd_(fd) {}
  ~File() {
    if (fd_ >= 0) close(fd_);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  int fd() const { return fd_; }
  int release() { return std::exchange(fd_, -1); }  // to another owner
  explicit operator bool() const { return fd_ >= 0; }

 private:
  int fd_;
};

// "what: the reason that errno holds"
std::string last_error(const std::string& what);

// -1 with errno set where there is none. `name` is what /proc shows of it.
int open_anonymous(const char* name);

// The first `bytes` of the file at an address that suits huge pages; nullptr with errno set where
// that is refused. `protection`: mmap's.
std::byte* try_to_map(int fd, std::size_t bytes, int protection);
// The same to read and write; throws TransportError.
std::byte* map_shared(int fd, std::size_t bytes);

// Reserves the pages from `offset` on, which are mapped at `data`: memory that is lacking must be
// an error here, not a SIGBUS later. Throws TransportError.
void allocate(const File& file, std::byte* data, std::size_t offset, std::size_t bytes);

}  // namespace gradred
