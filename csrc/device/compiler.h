// NVIDIA's compiler for running programs (NVRTC), looked up when it is first wanted.
#pragma once

#include <string>
#include <vector>

namespace gradred::device {

class Compiler {
 public:
  // The first of these libraries that there is, by name or path; one that the process has already
  // comes before all others. Throws DeviceError that says what is missing.
  static const Compiler& load(const std::vector<std::string>& libraries);

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
