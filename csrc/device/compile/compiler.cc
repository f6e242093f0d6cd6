#include "device/compile/compiler.h"

#include <dlfcn.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <mutex>
#include <set>

#include "base/clock.h"
#include "base/driver_calls.h"
#include "base/errors.h"

namespace gradred::device {
namespace {

template <class Function>
void look_up(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  if (function == nullptr) {
    throw DeviceError(std::string("NVRTC has no ") + name +
                      ": it is too old. Needed is that of CUDA 11.7 or later.");
  }
}

// NVRTC opens its builtins library by name alone, and does not search NVRTC's own folder.
void open_builtins_beside(const std::string& library) {
  const std::filesystem::path folder = std::filesystem::path(library).parent_path();
  if (folder.empty()) return;
  std::error_code none;
  for (const auto& file : std::filesystem::directory_iterator(folder, none)) {
    const std::string name = file.path().filename();
    if (name.starts_with("libnvrtc-builtins.so")) dlopen(file.path().c_str(), RTLD_NOW);
  }
}

std::string cuda_text(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

}  // namespace

const Compiler& Compiler::load(const std::vector<std::string>& libraries, int driver_version,
                               std::size_t turn) {
  static std::mutex mutex;
  static auto& known = *new std::map<void*, Compiler>;  // never freed
  const std::lock_guard lock(mutex);
  std::string tried;
  std::set<void*> seen;
  for (const int flags : {RTLD_NOW | RTLD_NOLOAD, RTLD_NOW}) {
    for (const std::string& one : libraries) {
      void* const library = dlopen(one.c_str(), flags);
      if (library == nullptr) {
        if ((flags & RTLD_NOLOAD) == 0) tried += (tried.empty() ? "" : ", ") + one;
        continue;
      }
      if (!seen.insert(library).second) continue;
      open_builtins_beside(one);
      try {
        const Compiler& found = known.try_emplace(library, Compiler(library)).first->second;
        if (found.version_ / 1000 <= driver_version / 1000 && turn-- == 0) return found;
        tried += (tried.empty() ? "" : ", ") + one + " of CUDA " + cuda_text(found.version_);
      } catch (const DeviceError& error) {
        tried += (tried.empty() ? "" : ", ") + one + ": " + error.what();
      }
    }
  }
  throw DeviceError("there is no NVRTC to compile kernels with for a driver of CUDA " +
                    cuda_text(driver_version) + " (looked for " + tried +
                    "). pip install nvidia-cuda-nvrtc brings one.");
}

Compiler::Compiler(void* library) {
  int (*tell_version)(int* major, int* minor) = nullptr;
  look_up(library, "nvrtcVersion", tell_version);
  int major = 0, minor = 0;
  tell_version(&major, &minor);
  version_ = 1000 * major + 10 * minor;
  if (version_ < kOldest) {
    throw DeviceError("NVRTC " + cuda_text(version_) + " is too old. Needed is 11.7 or later.");
  }
  look_up(library, "nvrtcGetErrorString", error_string_);
  look_up(library, "nvrtcGetNumSupportedArchs", count_capabilities_);
  look_up(library, "nvrtcGetSupportedArchs", get_capabilities_);
  look_up(library, "nvrtcCreateProgram", create_);
  look_up(library, "nvrtcDestroyProgram", destroy_);
  look_up(library, "nvrtcCompileProgram", compile_);
  look_up(library, "nvrtcGetProgramLogSize", log_bytes_);
  look_up(library, "nvrtcGetProgramLog", log_);
  look_up(library, "nvrtcGetCUBINSize", cubin_bytes_);
  look_up(library, "nvrtcGetCUBIN", cubin_);
  look_up(library, "nvrtcGetPTXSize", ptx_bytes_);
  look_up(library, "nvrtcGetPTX", ptx_);
}

void Compiler::check(int code, const char* what) const {
  if (code != 0) throw DeviceError(std::string(what) + ": " + error_string_(code));
}

int Compiler::nearest(int capability) const {
  int count = 0;
  check(count_capabilities_(&count), "nvrtcGetNumSupportedArchs");
  std::vector<int> known(static_cast<std::size_t>(count));
  check(get_capabilities_(known.data()), "nvrtcGetSupportedArchs");
  int best = 0;
  for (const int one : known) best = one <= capability ? std::max(best, one) : best;
  if (best == 0) {
    throw DeviceError("this NVRTC knows no device of compute capability " +
                      std::to_string(capability / 10) + "." + std::to_string(capability % 10));
  }
  return best;
}

std::string Compiler::compile(const File& source, const std::vector<File>& headers, int capability,
                              const std::vector<std::string>& options) const {
  std::vector<const char*> texts, names, words;
  for (const File& one : headers) {
    texts.push_back(one.text);
    names.push_back(one.name);
  }
  const int known = nearest(capability);
  const bool exact = known == capability;
  const std::string architecture =
      std::string("--gpu-architecture=") + (exact ? "sm_" : "compute_") + std::to_string(known);
  words.push_back(architecture.c_str());
  for (const std::string& one : options) words.push_back(one.c_str());

  Program program = nullptr;
  check(create_(&program, source.text, source.name, static_cast<int>(headers.size()), texts.data(),
                names.data()),
        "nvrtcCreateProgram");
  struct Destroys {
    const Compiler& compiler;
    Program& program;
    ~Destroys() { compiler.destroy_(&program); }
  } const destroys{*this, program};
  std::size_t bytes = 0;
  const std::uint64_t begin = now_ns();
  const int failure = compile_(program, static_cast<int>(words.size()), words.data());
  if (measure_driver_calls) {
    note_driver_call(kCompilerCall, "nvrtcCompileProgram", begin, now_ns());
  }
  if (failure != 0) {
    check(log_bytes_(program, &bytes), "nvrtcGetProgramLogSize");
    std::string log(bytes, '\0');
    check(log_(program, log.data()), "nvrtcGetProgramLog");
    throw DeviceError("NVRTC: " + std::string(error_string_(failure)) + " of " + source.name +
                      ": " + log.c_str());
  }
  check((exact ? cubin_bytes_ : ptx_bytes_)(program, &bytes), "the size of NVRTC's code");
  std::string code(bytes, '\0');
  check((exact ? cubin_ : ptx_)(program, code.data()), "NVRTC's code");
  return code;
}

}  // namespace gradred::device
