// NVIDIA's runtime compiler (NVRTC). Its library is loaded when it is first needed.
#pragma once

#include <string>
#include <vector>

namespace gradred::device {

class Compiler {
 public:
  // Loads one of `libraries` (names or paths). Skips those that are missing or newer than the
  // driver, which may refuse their code. A library that the process has already loaded comes first;
  // the others follow in this order. `turn`: the number of usable libraries to skip. Throws
  // DeviceError if none is left, with the reasons.
  static const Compiler& load(const std::vector<std::string>& libraries, int driver_version,
                              std::size_t turn = 0);
  static constexpr int kOldest = 11070;  // the first version with __grid_constant__

  int version() const { return version_; }  // encoded like Driver::version

  struct File {
    const char* name;
    const char* text;
  };
  // Compiles for devices of a compute capability (90 for 9.0). Returns a cubin. If the compiler is
  // older than the device, returns PTX of the newest capability that it supports instead. Takes
  // about a second. Throws DeviceError with the compiler's log.
  std::string compile(const File& source, const std::vector<File>& headers, int capability,
                      const std::vector<std::string>& options) const;

 private:
  explicit Compiler(void* library);
  void check(int code, const char* what) const;
  int nearest(int capability) const;

  int version_ = 0;
  using Program = struct OpaqueProgram*;
  const char* (*error_string_)(int code);
  int (*count_capabilities_)(int* count);
  int (*get_capabilities_)(int* capabilities);
  int (*create_)(Program* program, const char* text, const char* name, int headers,
                 const char* const* texts, const char* const* names);
  int (*destroy_)(Program* program);
  int (*compile_)(Program program, int count, const char* const* options);
  int (*log_bytes_)(Program program, std::size_t* bytes);
  int (*log_)(Program program, char* text);
  int (*cubin_bytes_)(Program program, std::size_t* bytes);
  int (*cubin_)(Program program, char* code);
  int (*ptx_bytes_)(Program program, std::size_t* bytes);
  int (*ptx_)(Program program, char* code);
};

}  // namespace gradred::device
