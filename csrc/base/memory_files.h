// Files in memory that have a name but no path.
#pragma once

#include <linux/memfd.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace gradred {

// Makes an empty file, which an exec closes. Returns its descriptor, or -1 and errno. Calls the
// kernel directly, since glibc 2.17, for which wheels are built, has no memfd_create().
inline int make_memory_file(const char* name) {
  return static_cast<int>(syscall(SYS_memfd_create, name, MFD_CLOEXEC));
}

}  // namespace gradred
