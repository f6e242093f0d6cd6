#include "base/clock.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/errors.h"

namespace gradred {
namespace {

constinit const ClockSteps kNoSteps{0};

[[noreturn]] void refuse_file(const std::string& path, const std::string& why) {
  throw UsageError("the clock's file " + path + " cannot be read: " + why +
                   ". Give a file of 8 bytes; only tests need one.");
}

const ClockSteps* mapped_file(const std::string& path) {
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file < 0) refuse_file(path, std::strerror(errno));
  struct stat status{};
  const bool fits = fstat(file, &status) == 0 && status.st_size >= off_t{sizeof(ClockSteps)};
  void* const mapped =
      fits ? mmap(nullptr, sizeof(ClockSteps), PROT_READ, MAP_SHARED, file, 0) : MAP_FAILED;
  const int error = errno;
  close(file);
  if (!fits) refuse_file(path, "it is too short");
  if (mapped == MAP_FAILED) refuse_file(path, std::strerror(error));
  return static_cast<const ClockSteps*>(mapped);
}

}  // namespace

constinit std::atomic<const ClockSteps*> clock_steps{&kNoSteps};

// A file mapped before stays mapped, since other threads may still read it.
void take_clock_steps_from(const std::string& path) {
  if (!path.empty()) clock_steps.store(mapped_file(path), std::memory_order_release);
}

}  // namespace gradred
