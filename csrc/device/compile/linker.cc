#include "device/compile/linker.h"

#include <dlfcn.h>

#include <map>
#include <mutex>
#include <utility>

#include "base/errors.h"
#include "device/driver/owners.h"

namespace gradred::device {

// The library's functions have a suffix for each version of programs that it supports.
bool Linker::look_up(void* library, int version) {
  const std::string of =
      "_" + std::to_string(version / 1000) + "_" + std::to_string(version % 1000 / 10);
  const auto find = [&]<class Function>(const char* name, Function& function) {
    function = reinterpret_cast<Function>(dlsym(library, ("__nvJitLink" + (name + of)).c_str()));
    return function != nullptr;
  };
  return find("Create", create_) && find("Destroy", destroy_) && find("AddData", add_) &&
         find("Complete", complete_) && find("GetLinkedCubinSize", cubin_bytes_) &&
         find("GetLinkedCubin", cubin_) && find("GetErrorLogSize", log_bytes_) &&
         find("GetErrorLog", log_);
}

const Linker* Linker::find(const std::vector<std::string>& libraries, int version) {
  static std::mutex mutex;
  static auto& known = *new std::map<std::pair<void*, int>, Linker>;  // never freed
  const std::lock_guard lock(mutex);
  for (const std::string& one : libraries) {
    void* const library = dlopen(one.c_str(), RTLD_NOW);
    if (library == nullptr) continue;
    Linker made;
    if (made.look_up(library, version))
      return &known.try_emplace({library, version}, made).first->second;
  }
  return nullptr;
}

void Linker::check(int code, const char* what, Handle link) const {
  if (code == 0) return;
  std::size_t bytes = 0;
  std::string log;
  if (link != nullptr && log_bytes_(link, &bytes) == 0 && bytes > 1) {
    log.resize(bytes);
    if (log_(link, log.data()) != 0) log.clear();
    log.resize(log.find_last_not_of(std::string("\n\0", 2)) + 1);
  }
  throw DeviceError(std::string(what) + ": code " + std::to_string(code) +
                    (log.empty() ? "" : " (" + log + ")"));
}

std::string Linker::link(const std::vector<std::string>& parts, int capability) const {
  constexpr int kCubinPart = 1, kPtxPart = 2;
  const std::string architecture = "-arch=sm_" + std::to_string(capability);
  const char* const options[] = {architecture.c_str()};
  struct Owner {
    const Linker& linker;
    Handle handle = nullptr;
    ~Owner() {
      if (handle != nullptr) linker.destroy_(&handle);
    }
  } owner{*this};
  check(create_(&owner.handle, 1, options), "nvJitLinkCreate", nullptr);
  const Handle link = owner.handle;
  for (const std::string& part : parts) {
    const bool binary = is_cubin(part);
    // PTX text includes its terminating zero.
    const std::size_t bytes = part.size() + (binary ? 0 : 1);
    check(add_(link, binary ? kCubinPart : kPtxPart, part.c_str(), bytes, "gradred"),
          "nvJitLinkAddData", link);
  }
  check(complete_(link), "nvJitLinkComplete", link);
  std::size_t bytes = 0;
  check(cubin_bytes_(link, &bytes), "nvJitLinkGetLinkedCubinSize", link);
  std::string code(bytes, '\0');
  check(cubin_(link, code.data()), "nvJitLinkGetLinkedCubin", link);
  return code;
}

}  // namespace gradred::device
