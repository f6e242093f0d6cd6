// Calls to the simulated driver as a program's own library, such as CuPy, makes them.
#pragma once

#include <dlfcn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <functional>
#include <string>

#include "base/errors.h"
#include "device/driver/driver.h"

// Ranks of these tests end with running threads, those of the driver. ThreadSanitizer would wait a
// second for them.
extern "C" [[gnu::used, gnu::visibility("default")]] inline const char* __tsan_default_options() {
  return "atexit_sleep_ms=0";
}

namespace gradred::testing {

inline const std::string kSimulated = SIMULATED_DRIVER;  // path of the library that CMake has built

class User {
 public:
  User() : library_(dlopen(kSimulated.c_str(), RTLD_NOW | RTLD_LOCAL)) {
    gradred::check(library_ != nullptr, "the simulated driver can be loaded");
  }

  // Calls a driver function, and returns its result.
  template <class... Arguments>
  int call(const char* name, Arguments... arguments) const {
    auto* const function = reinterpret_cast<int (*)(Arguments...)>(dlsym(library_, name));
    gradred::check(function != nullptr, name);
    return function(arguments...);
  }
  template <class... Arguments>
  void must(const char* name, Arguments... arguments) const {
    gradred::check(call(name, arguments...) == 0, name);
  }

  void initialise() const { must("cuInit", 0U); }
  // Like cudaSetDevice: makes the device's primary context current in this thread.
  void make_current(int device = 0) const {
    initialise();
    device::ContextHandle context = nullptr;
    must("cuDevicePrimaryCtxRetain", &context, device);
    must("cuCtxSetCurrent", context);
  }

  device::Address allocate(std::size_t bytes, const char* how = "cuMemAlloc_v2") const {
    device::Address address = 0;
    must(how, &address, bytes);
    return address;
  }
  device::Address allocate_managed(std::size_t bytes) const {
    device::Address address = 0;
    must("cuMemAllocManaged", &address, bytes, 1U);
    return address;
  }
  device::Address allocate_in_pool(std::size_t bytes) const {
    device::Address address = 0;
    must("cuMemAllocAsync", &address, bytes, kStandard);
    return address;
  }
  void free(device::Address address) const { must("cuMemFree_v2", address); }
  void free_in_pool(device::Address address) const {
    must("cuMemFreeAsync", address, kStandard);
    must("cuStreamSynchronize", kStandard);
  }

  void set(const char* name, long value) const {
    reinterpret_cast<void (*)(const char*, long)>(dlsym(library_, "simulated_cuda_set"))(name,
                                                                                         value);
  }
  void fail(const char* function, int code, long after = 0) const {
    reinterpret_cast<void (*)(const char*, int, long)>(dlsym(library_, "simulated_cuda_fail"))(
        function, code, after);
  }
  long count(const char* name) const {
    return reinterpret_cast<long (*)(const char*)>(dlsym(library_, "simulated_cuda_count"))(name);
  }

  static constexpr void* kStandard = nullptr;  // the legacy default stream

 private:
  void* library_;
};

using device::address_of;
inline void* pointer_to(device::Address address) { return reinterpret_cast<void*>(address); }

// The text of an error of this kind. Empty: there was no error.
template <class Error>
std::string message_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return {};
}

// Whether an error is caught. A child process runs `passes`: it must crash or return false. Call it
// only before this process has started threads.
inline bool is_caught(const std::function<bool()>& passes) {
  std::fflush(nullptr);
  const pid_t child = fork();
  if (child == 0) {
    alarm(30);
    if (std::freopen("/dev/null", "w", stderr) == nullptr) _exit(3);
    try {
      _exit(passes() ? 0 : 1);
    } catch (const std::exception&) {
      _exit(2);
    }
  }
  int status = 0;
  waitpid(child, &status, 0);
  return status != 0;
}

}  // namespace gradred::testing
