// The simulated driver's modules and launches, with a compiler (NVRTC) for them. Compiled code is
// the name of an element type, whose kernels g++ has compiled into this library. Kernels for a
// program's own operation are linked with "simulated function at ADDRESS", a host function of two
// numbers.
//
// SIMULATED_NVRTC_COUNT names a file to which each compilation adds a byte. A copy of this library
// whose name ends in a version, such as libnvrtc.so.13.0, is a compiler of that version. Other
// copies have version 12.8. The driver refuses code from the compiler that SIMULATED_CUDA_REFUSES
// names. The driver loads code from a later minor version of its own major version, but its linker
// refuses such code. The library is also the linker of 12.8 (nvJitLink).
#include <dlfcn.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "kernels_on_host.h"
#include "simulated_driver.h"

namespace simulated {
namespace {

constexpr int kInvalidPtx = 218, kUnsupportedPtx = 222;
constexpr std::string_view kMark = "simulated kernels of ";
// Code without its function, in binary form like the compiler's cubins.
constexpr std::string_view kOpenMark =
    "\x7f"
    "ELF of simulated open kernels of ";
constexpr std::string_view kCopies = "copies";  // in place of an element type
constexpr std::string_view kFunctionMark = "simulated function at ";

std::atomic<long> launched{0};

struct Module {
  std::string element;
  void* user = nullptr;            // function that is linked to it
  std::set<std::string> loaded{};  // functions, each loaded when it is first requested
  std::deque<gradred_kernels::Named> own{};
  std::deque<gradred_kernels::NamedShots> shots{};
};

std::mutex shots_mutex;
std::set<const void*> all_shots;  // functions
struct Link {
  std::string kernels, code;
  void* user = nullptr;
};
struct Program {
  std::string element, log;
  bool open = false;
  bool copies = false;  // compiled from copies.cu
};

bool has_kernels(const std::string& element) {
  for (const gradred_kernels::Named& one : gradred_kernels::kKernels) {
    if (std::string_view(one.name).starts_with("gradred_" + element + "_")) return true;
  }
  return false;
}

std::size_t bytes_of(const std::string& kernel) {
  static const std::map<std::string, std::size_t> sizes = {
      {"float8_e4m3fn", 1}, {"float8_e5m2", 1}, {"float16", 2}, {"bfloat16", 2}, {"float32", 4},
      {"float64", 8},       {"int32", 4},       {"int64", 8},   {"uint8", 1}};
  for (const auto& [element, bytes] : sizes) {
    if (std::string_view(kernel).starts_with("gradred_" + element + "_")) return bytes;
  }
  std::abort();
}

// The number of inputs in the kernel's name, or else in its argument.
std::size_t inputs_of(const std::string& kernel, const gradred_kernels::Arguments& call) {
  const int named = kernel.back() - '0';
  return named != 0 ? static_cast<std::size_t>(named) : call.k;
}

// Runs a kernel. Device addresses are replaced by those of the driver.
bool carry_out(const gradred_kernels::Named& kernel, unsigned blocks, unsigned threads,
               gradred_kernels::Arguments call) {
  const std::size_t bytes = call.count * bytes_of(kernel.name);
  std::vector<std::shared_ptr<void>> kept(2 * gradred_kernels::kMostInputs);
  const auto translated = [&](const void* address, std::shared_ptr<void>& keep) {
    return reachable(reinterpret_cast<Address>(address), bytes, keep);
  };
  const std::size_t inputs = inputs_of(kernel.name, call);
  for (std::size_t i = 0; i < inputs; ++i) {
    call.inputs[i] = translated(call.inputs[i], kept[i]);
    if (call.inputs[i] == nullptr) return false;
  }
  for (std::size_t i = 0; i < call.written; ++i) {
    call.targets[i] = translated(call.targets[i], kept[gradred_kernels::kMostInputs + i]);
    if (call.targets[i] == nullptr) return false;
  }
  gradred_user_address = kernel.user;
  gradred_kernels::launch(kernel.kernel, blocks, threads, call);
  return true;
}

// A block has one thread here, so no thread waits for a later one.
bool carry_out(const gradred_kernels::NamedShots& kernel, unsigned blocks,
               gradred_kernels::ShotArguments call) {
  std::vector<std::shared_ptr<void>> kept;
  bool all = true;
  const auto translate = [&](auto& address, std::size_t bytes) {
    std::byte* const found =
        reachable(reinterpret_cast<Address>(address), bytes, kept.emplace_back());
    all &= found != nullptr;
    address = reinterpret_cast<std::remove_reference_t<decltype(address)>>(found);
  };
  const std::size_t bytes = call.count * bytes_of(kernel.name), slot = (bytes + 15) / 16 * 16;
  const std::size_t flags =
      sizeof(unsigned) * call.ranks * std::size_t{gradred_kernels::kMostShotBlocks};
  translate(call.input, bytes);
  translate(call.result, bytes);
  translate(call.cancelled, sizeof(unsigned));
  for (unsigned rank = 0; rank < call.ranks; ++rank) {
    translate(call.inputs[rank], slot);
    translate(call.sums[rank], slot);
    translate(call.met[rank], flags);
    translate(call.left[rank], flags);
  }
  gradred_user_address = kernel.user;
  if (all) gradred_kernels::launch(kernel.kernel, blocks, 1, call);
  return all;
}

// Runs a kernel that copies. No part may reach beyond its allocation.
bool carry_out(unsigned blocks, unsigned threads, gradred_kernels::CopyArguments call) {
  std::vector<std::shared_ptr<void>> kept(2 * gradred_kernels::kMostCopies);
  for (unsigned part = 0; part < call.parts; ++part) {
    std::byte* const target =
        reachable(reinterpret_cast<Address>(call.targets[part]), call.bytes[part], kept[2 * part]);
    const std::byte* const source = reachable(reinterpret_cast<Address>(call.sources[part]),
                                              call.bytes[part], kept[2 * part + 1]);
    if (target == nullptr || source == nullptr) return false;
    call.targets[part] = target;
    call.sources[part] = source;
  }
  gradred_kernels::launch(gradred_copies, blocks, threads, call);
  return true;
}

// nullptr: the function is of another kind.
const gradred_kernels::NamedShots* as_shots(const void* function) {
  const std::lock_guard lock(shots_mutex);
  return all_shots.contains(function) ? static_cast<const gradred_kernels::NamedShots*>(function)
                                      : nullptr;
}

// Code ends with a zero byte here, even if it represents a cubin.
std::string text_of(const void* data, std::size_t bytes) {
  return {static_cast<const char*>(data), strnlen(static_cast<const char*>(data), bytes)};
}

bool add_to(Link* link, const std::string& text) {
  if (text.starts_with(kOpenMark)) {
    link->kernels = text.substr(kOpenMark.size());
    return true;
  }
  return text.starts_with(kFunctionMark) &&
         std::sscanf(text.c_str() + kFunctionMark.size(), "%p", &link->user) == 1;
}
bool complete(Link* link) {
  if (link->kernels.empty() || link->user == nullptr) return false;
  char address[40];
  std::snprintf(address, sizeof address, "#%p", link->user);
  link->code = std::string(kMark) + link->kernels + address;
  return true;
}

// The version of the compiler that has made the code, in the driver's notation.
int version_in(const std::string& code) {
  int major = 0, minor = 0;
  std::sscanf(code.c_str() + code.find('@'), "@%d.%d", &major, &minor);
  return 1000 * major + 10 * minor;
}
int driver_version() {
  const char* const text = std::getenv("SIMULATED_CUDA_VERSION");
  return text != nullptr ? std::atoi(text) : 12080;
}

// The version of this copy of the library as a compiler.
std::string compiler_version() {
  Dl_info self{};
  if (dladdr(reinterpret_cast<void*>(&compiler_version), &self) == 0) return "12.8";
  const std::string file = self.dli_fname;
  const std::size_t at = file.rfind(".so.");
  return at == std::string::npos ? "12.8" : file.substr(at + 4);
}

std::string code_of(void* program) {
  const auto& [element, log, open, copies] = *static_cast<Program*>(program);
  return std::string(open ? kOpenMark : kMark) + element + "@" + compiler_version();
}

}  // namespace

long launches() { return launched; }

void run_kernel(std::string_view name, const gradred_kernels::Arguments& call) {
  for (const gradred_kernels::Named& one : gradred_kernels::kKernels) {
    if (name == one.name) return gradred_kernels::launch(one.kernel, 2, 32, call);
  }
  std::abort();
}

}  // namespace simulated

using namespace simulated;  // NOLINT: what follows is all of C

extern "C" {

int cuModuleLoadData(void** module, const void* image) {
  if (const int code = failing_in_context("cuModuleLoadData")) return code;
  synchronise_context();
  const std::string text = static_cast<const char*>(image);
  const std::size_t end = text.find('@');
  if (!text.starts_with(kMark) || end == std::string::npos) return kInvalidImage;
  const std::size_t hash = text.find('#');
  const char* const refused = std::getenv("SIMULATED_CUDA_REFUSES");
  if (refused != nullptr && text.substr(end + 1, hash - end - 1) == refused) return kUnsupportedPtx;
  auto* const made = new Module{text.substr(kMark.size(), end - kMark.size())};
  if (hash != std::string::npos) std::sscanf(text.c_str() + hash, "#%p", &made->user);
  *module = made;
  return kSuccess;
}
int cuLinkCreate_v2(unsigned, int*, void**, void** link) {
  if (const int code = failing_in_context("cuLinkCreate")) return code;
  *link = new Link;
  return kSuccess;
}
int cuLinkAddData_v2(void* link, int, const void* data, std::size_t bytes, const char*, unsigned,
                     int*, void**) {
  if (const int code = failing_in_context("cuLinkAddData")) return code;
  const std::string text = text_of(data, bytes);
  if (text.starts_with(kOpenMark) && version_in(text) > driver_version()) return kUnsupportedPtx;
  return add_to(static_cast<Link*>(link), text) ? kSuccess : kInvalidPtx;
}
int cuLinkComplete(void* link, void** image, std::size_t* bytes) {
  if (const int code = failing_in_context("cuLinkComplete")) return code;
  synchronise_context();
  auto* const made = static_cast<Link*>(link);
  if (!complete(made)) return kNotFound;
  *image = made->code.data();
  *bytes = made->code.size();
  return kSuccess;
}
int cuLinkDestroy(void* link) {
  delete static_cast<Link*>(link);
  return kSuccess;
}
int cuModuleUnload(void* module) {
  if (const int code = failing_in_context("cuModuleUnload")) return code;
  auto* const ended = static_cast<Module*>(module);
  {
    const std::lock_guard lock(shots_mutex);
    for (const auto& one : ended->shots) all_shots.erase(&one);
  }
  delete ended;
  return kSuccess;
}
int cuModuleGetFunction(const void** function, void* module, const char* name) {
  if (const int code = failing_in_context("cuModuleGetFunction")) return code;
  auto& [element, user, loaded, own, shots] = *static_cast<Module*>(module);
  if (element == kCopies && std::strcmp(name, "gradred_copies") == 0) {
    if (loaded.insert(name).second) synchronise_context();
    return *function = kCopies.data(), kSuccess;
  }
  const bool of_user = std::string_view(name).find("_user_") != std::string_view::npos;
  if (of_user != (user != nullptr) ||
      !std::string_view(name).starts_with("gradred_" + element + "_"))
    return kNotFound;
  if (loaded.insert(name).second) synchronise_context();
  for (const gradred_kernels::Named& one : gradred_kernels::kKernels) {
    if (std::strcmp(one.name, name) != 0) continue;
    own.push_back({one.name, one.kernel, user});
    return *function = &own.back(), kSuccess;
  }
  for (const gradred_kernels::NamedShots& one : gradred_kernels::kShots) {
    if (std::strcmp(one.name, name) != 0) continue;
    shots.push_back({one.name, one.kernel, user});
    const std::lock_guard lock(shots_mutex);
    all_shots.insert(*function = &shots.back());
    return kSuccess;
  }
  return kNotFound;
}
int cuLaunchKernel(const void* function, unsigned blocks, unsigned, unsigned, unsigned threads,
                   unsigned, unsigned, unsigned, void* stream, void** arguments, void**) {
  if (const int code = failing_in_context("cuLaunchKernel")) return code;
  if (const gradred_kernels::NamedShots* const shots = as_shots(function)) {
    const auto call = *static_cast<const gradred_kernels::ShotArguments*>(arguments[0]);
    ++launched;
    return give(stream, [=] { return carry_out(*shots, blocks, call); });
  }
  if (function == kCopies.data()) {
    const auto call = *static_cast<const gradred_kernels::CopyArguments*>(arguments[0]);
    ++launched;
    return give(stream, [=] { return carry_out(blocks, threads, call); });
  }
  const auto* const kernel = static_cast<const gradred_kernels::Named*>(function);
  const auto call = *static_cast<const gradred_kernels::Arguments*>(arguments[0]);
  ++launched;
  return give(stream, [=] { return carry_out(*kernel, blocks, threads, call); });
}

// ---- nvJitLink --------------------------------------------------------------------------------

int link_create(void** link, unsigned, const char* const*) asm("__nvJitLinkCreate_12_8");
int link_create(void** link, unsigned, const char* const*) {
  if (failing("nvJitLinkCreate") != 0) return 1;
  return *link = new Link, 0;
}
int link_destroy(void** link) asm("__nvJitLinkDestroy_12_8");
int link_destroy(void** link) { return delete static_cast<Link*>(*link), 0; }
int link_add(void* link, int, const void* data, std::size_t bytes,
             const char*) asm("__nvJitLinkAddData_12_8");
int link_add(void* link, int, const void* data, std::size_t bytes, const char*) {
  if (failing("nvJitLinkAddData") != 0) return 4;
  return add_to(static_cast<Link*>(link), text_of(data, bytes)) ? 0 : 4;
}
int link_complete(void* link) asm("__nvJitLinkComplete_12_8");
int link_complete(void* link) { return complete(static_cast<Link*>(link)) ? 0 : 6; }
int link_bytes(void* link, std::size_t* bytes) asm("__nvJitLinkGetLinkedCubinSize_12_8");
int link_bytes(void* link, std::size_t* bytes) {
  return *bytes = static_cast<Link*>(link)->code.size() + 1, 0;
}
int link_code(void* link, char* code) asm("__nvJitLinkGetLinkedCubin_12_8");
int link_code(void* link, char* code) {
  return std::strcpy(code, static_cast<Link*>(link)->code.c_str()), 0;
}
int link_log_bytes(void*, std::size_t* bytes) asm("__nvJitLinkGetErrorLogSize_12_8");
int link_log_bytes(void*, std::size_t* bytes) { return *bytes = 0, 0; }
int link_log(void*, char*) asm("__nvJitLinkGetErrorLog_12_8");
int link_log(void*, char*) { return 0; }

// ---- NVRTC ------------------------------------------------------------------------------------

int nvrtcVersion(int* major, int* minor) {
  return std::sscanf(compiler_version().c_str(), "%d.%d", major, minor) == 2 ? 0 : 3;
}
const char* nvrtcGetErrorString(int code) {
  return code == 0 ? "NVRTC_SUCCESS" : "NVRTC_ERROR_COMPILATION";
}
int nvrtcGetNumSupportedArchs(int* count) { return *count = 2, 0; }
int nvrtcGetSupportedArchs(int* architectures) {
  architectures[0] = 75;
  architectures[1] = kCapability;
  return 0;
}
int nvrtcCreateProgram(void** program, const char* text, const char* file, int headers,
                       const char* const*, const char* const* names) {
  const std::string source = text;
  const bool whole = source.find("gradred_kernels") != std::string::npos;
  if (!whole || headers != 2 || std::strcmp(names[0], "arguments.h") != 0 ||
      std::strcmp(names[1], "reduce.cu") != 0) {
    return 6;
  }
  auto* const made = new Program;
  made->copies = std::strcmp(file, "copies.cu") == 0;
  *program = made;
  return 0;
}
int nvrtcDestroyProgram(void** program) {
  delete static_cast<Program*>(*program);
  *program = nullptr;
  return 0;
}
int nvrtcCompileProgram(void* program, int count, const char* const* options) {
  if (const char* const path = std::getenv("SIMULATED_NVRTC_COUNT")) {
    if (std::FILE* const file = std::fopen(path, "a")) {
      std::fputc('x', file);
      std::fclose(file);
    }
  }
  constexpr std::string_view kElement = "-DGRADRED_ELEMENT=";
  auto* const made = static_cast<Program*>(program);
  for (int i = 0; i < count; ++i) {
    const std::string_view option = options[i];
    if (option.starts_with(kElement)) made->element = option.substr(kElement.size());
    if (option == "-DGRADRED_USER_OP") made->open = true;
  }
  if (made->copies) made->element = kCopies;
  if (made->copies || has_kernels(made->element)) return 0;
  made->log = "reduce.cu(1): error: no such element";
  return 6;
}
int nvrtcGetProgramLogSize(void* program, std::size_t* bytes) {
  *bytes = static_cast<Program*>(program)->log.size() + 1;
  return 0;
}
int nvrtcGetProgramLog(void* program, char* text) {
  std::strcpy(text, static_cast<Program*>(program)->log.c_str());
  return 0;
}
int nvrtcGetCUBINSize(void* program, std::size_t* bytes) {
  *bytes = code_of(program).size() + 1;
  return 0;
}
int nvrtcGetCUBIN(void* program, char* code) {
  std::strcpy(code, code_of(program).c_str());
  return 0;
}
int nvrtcGetPTXSize(void* program, std::size_t* bytes) { return nvrtcGetCUBINSize(program, bytes); }
int nvrtcGetPTX(void* program, char* code) { return nvrtcGetCUBIN(program, code); }

}  // extern "C"
