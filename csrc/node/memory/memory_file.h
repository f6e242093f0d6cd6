// Anonymous files in memory: the storage of everything that processes share.
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
  int release() { return std::exchange(fd_, -1); }  // gives the descriptor to another owner
  explicit operator bool() const { return fd_ >= 0; }

 private:
  int fd_;
};

// Returns "what: the text for errno".
std::string last_error(const std::string& what);

// Returns -1 with errno set if no file can be created. `name` is what /proc shows for the file.
int open_anonymous(const char* name);

// Maps the first `bytes` of the file, at an address that is aligned for huge pages. Returns nullptr
// with errno set if the kernel refuses. `protection`: as for mmap().
std::byte* try_to_map(int fd, std::size_t bytes, int protection);
// The same for reading and writing. Throws TransportError.
std::byte* map_shared(int fd, std::size_t bytes);

// Reserves the pages from `offset` on, which are mapped at `data`. Lack of memory must be an error
// here, not a SIGBUS later. Throws TransportError.
void allocate(const File& file, std::byte* data, std::size_t offset, std::size_t bytes);

}  // namespace gradred
