#include "base/files.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace gradred {

int write_file(const std::string& path, const std::string& text) {
  const int flags = O_WRONLY | O_CREAT | O_TRUNC | O_NONBLOCK | O_NOCTTY | O_CLOEXEC;
  const int file = open(path.c_str(), flags, 0666);
  if (file < 0) return errno;
  int error = fcntl(file, F_SETFL, O_WRONLY) == 0 ? 0 : errno;  // O_NONBLOCK was only for open()
  for (std::size_t at = 0; error == 0 && at < text.size();) {
    const ssize_t written = ::write(file, text.data() + at, text.size() - at);
    if (written >= 0) {
      at += static_cast<std::size_t>(written);
    } else if (errno != EINTR) {
      error = errno;
    }
  }
  return close(file) == 0 || error != 0 ? error : errno;
}

std::string why_not_written(int error) {
  return error == ENXIO ? "it is a pipe that nobody reads, or a socket" : std::strerror(error);
}

}  // namespace gradred
