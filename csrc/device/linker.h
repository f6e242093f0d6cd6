// NVIDIA's linker for running programs (nvJitLink), looked up when it is first wanted: that of the
// toolkit whose compiler has made the code. The driver's own refuses code of a later minor version
// than its own, which it would load.
#pragma once

#include <string>
#include <vector>

namespace gradred::device {

class Linker {
 public:
  // Of these libraries, by name or path, the first one that knows a compiler of this version (as
  // Driver::version). Null: there is none.
  static const Linker* find(const std::vector<std::string>& libraries, int version);

  // Parts, each a cubin or PTX, linked to a cubin for devices of a compute capability. Throws
  // DeviceError with the linker's words.
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
