// NVIDIA's runtime linker (nvJitLink), loaded when it is first needed. It is the linker of the same
// toolkit as the compiler that has made the code. The driver's own linker refuses code of a later
// minor version than its own, though the driver would load such code.
#pragma once

#include <string>
#include <vector>

namespace gradred::device {

class Linker {
 public:
  // Returns the first of `libraries` (names or paths) that supports a compiler of this version
  // (encoded like Driver::version), or nullptr.
  static const Linker* find(const std::vector<std::string>& libraries, int version);

  // Links parts, each a cubin or PTX, to a cubin for devices of a compute capability. Throws
  // DeviceError with the linker's log.
  std::string link(const std::vector<std::string>& parts, int capability) const;

 private:
  using Handle = struct OpaqueJitLink*;

  bool look_up(void* library, int version);
  void check(int code, const char* what, Handle link) const;

  int (*create_)(Handle* link, unsigned count, const char* const* options);
  int (*destroy_)(Handle* link);
  int (*add_)(Handle link, int type, const void* data, std::size_t bytes, const char* name);
  int (*complete_)(Handle link);
  int (*cubin_bytes_)(Handle link, std::size_t* bytes);
  int (*cubin_)(Handle link, void* code);
  int (*log_bytes_)(Handle link, std::size_t* bytes);
  int (*log_)(Handle link, char* text);
};

}  // namespace gradred::device
