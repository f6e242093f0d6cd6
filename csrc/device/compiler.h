// NVIDIA's compiler for running programs (NVRTC), looked up when it is first wanted.
#pragma once

#include <string>
#include <vector>

namespace gradred::device {

class Compiler {
 public:
  // Of these libraries, by name or path, those that are there and no newer than the driver, whose
  // code it may refuse: one that the process has already comes before all others, then in this
  // order. `turn`: how many of them have been tried. Throws DeviceError that says what is missing.
  static const Compiler& load(const std::vector<std::string>& libraries, int driver_version,
                              std::size_t turn = 0);
  static constexpr int kOldest = 11070;  // knows __grid_constant__

  int version() const { return version_; }  // as Driver::version

  struct File {
    const char* name;
    const char* text;
  };
  // Code for devices of a compute capability (90 for 9.0): a cubin, or, where the compiler is older
  // than the device, PTX of the newest capability that it knows. Takes a second. Throws DeviceError
  // with the compiler's words.
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
