// Kernels that are compiled at run time, stored on disk, and launched, on the simulated driver and
// its compiler. If the environment has NVRTC=<library>, that compiler compiles them as well.
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "base/user_ops.h"
#include "device/compile/compiler.h"
#include "device/compile/user_functions.h"
#include "device/cuda_memory.h"
#include "device/kernels/kernels.h"
#include "node_calls.h"
#include "user.h"

namespace gradred::testing {
namespace {

using device::Address;
using device::Compiler;
using device::CudaStream;
using device::Driver;
using device::KernelCall;
using device::Kernels;
using device::Options;
using device::PinnedAllocation;

const Driver& driver() { return Driver::load(kSimulated); }

// A temporary folder, and a file that counts compilations.
class Folder {
 public:
  Folder() {
    std::string name = std::filesystem::temp_directory_path() / "gradred-launch-XXXXXX";
    check(mkdtemp(name.data()) != nullptr, "a temporary folder");
    path_ = name;
    setenv("SIMULATED_NVRTC_COUNT", count_file().c_str(), 1);
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;

  const std::string& path() const { return path_; }
  Options options() const {
    Options made{kSimulated, {kSimulated}, {kSimulated}, path_ + "/cache"};
    made.linkers.clear();
    return made;
  }
  std::size_t compilations() const {
    std::error_code none;
    const auto bytes = std::filesystem::file_size(count_file(), none);
    return none ? 0 : bytes;
  }
  std::vector<std::filesystem::path> files() const {
    std::vector<std::filesystem::path> found;
    for (const auto& one : std::filesystem::recursive_directory_iterator(path_ + "/cache")) {
      if (one.is_regular_file()) found.push_back(one.path());
    }
    return found;
  }

 private:
  std::string count_file() const { return path_ + "/compiled"; }
  std::string path_;
};

std::vector<float> read(const User& user, Address address, std::size_t count) {
  std::vector<float> found(count);
  const std::size_t bytes = count * sizeof(float);
  user.must("cuMemcpyAsync", address_of(found.data()), address, bytes, User::kStandard);
  user.must("cuStreamSynchronize", User::kStandard);
  return found;
}
Address written(const User& user, const std::vector<float>& values) {
  const std::size_t bytes = values.size() * sizeof(float);
  const Address address = user.allocate(bytes);
  user.must("cuMemcpyAsync", address, address_of(values.data()), bytes, User::kStandard);
  user.must("cuStreamSynchronize", User::kStandard);
  return address;
}

// k vectors. All elements of the i-th vector are i + 1.
std::vector<const void*> vectors(const User& user, std::size_t k, std::size_t count) {
  std::vector<const void*> made;
  for (std::size_t i = 0; i < k; ++i) {
    made.push_back(pointer_to(written(user, std::vector<float>(count, float(i + 1)))));
  }
  return made;
}

template <class Number>
Number sum_of(Number a, Number b) {
  return static_cast<Number>(a + b);
}

std::string code_of(void* function) {
  char text[64];
  std::snprintf(text, sizeof text, "simulated function at %p", function);
  return text;
}

void operations_of_the_programs_own(BoardBootstrap&) {
  const Folder folder;
  const User user;
  user.make_current();
  const Op op = user_op("launch_test-1", 1), broken = user_op("launch_test-2", 2);
  expect(Kernels::why_not(op, DType::kFloat32) == "there is no kernel for launch_test-1 of float32",
         "nobody has asked for it");
  device::add_user_function(op, DType::kFloat32,
                            {code_of(reinterpret_cast<void*>(&sum_of<float>))});
  device::add_user_function(op, DType::kInt32, {code_of(reinterpret_cast<void*>(&sum_of<int>))});
  device::add_user_function(broken, DType::kFloat32, {"no code"});
  device::add_user_function(broken, DType::kInt32, {"", "it cannot be compiled"});
  expect(Kernels::why_not(op, DType::kFloat32).empty(), "it is there");
  expect(Kernels::why_not(broken, DType::kInt32) ==
             "there is no kernel for launch_test-2 of int32: it cannot be compiled",
         "why there is none");

  Kernels kernels(driver(), 0, folder.options());
  kernels.prepare(op, DType::kFloat32);
  kernels.prepare(op, DType::kInt32);
  expect(folder.compilations() == 2, "two types");
  Kernels(driver(), 0, folder.options()).prepare(op, DType::kFloat32);
  expect(folder.compilations() == 2, "what is linked to is kept");
  kernels.prepare(op, DType::kFloat32, true);
  kernels.prepare(op, DType::kFloat32, true);
  expect(folder.compilations() == 3, "kernels that wait for peers are another module");
  const std::string said =
      message_of<DeviceError>([&] { kernels.prepare(broken, DType::kFloat32); });
  expect(said.find("cuLinkAddData") != std::string::npos, said);
  const std::size_t compiled = folder.compilations();
  const auto again = [&] { kernels.prepare(broken, DType::kFloat32); };
  expect(message_of<DeviceError>(again) == said, "the same answer");
  expect(folder.compilations() == compiled, "and nothing is tried again");

  CudaStream stream(driver());
  for (const std::size_t k : {2U, 3U, 4U, 8U, 32U, 40U}) {
    constexpr std::size_t kCount = 1003;
    const std::vector<const void*> inputs = vectors(user, k, kCount);
    const Address target = user.allocate(kCount * sizeof(float));
    void* const targets[] = {pointer_to(target)};
    kernels.launch(stream.get(), {.op = op, .targets = targets, .inputs = inputs, .count = kCount});
    stream.synchronize();
    const float sum = static_cast<float>(k * (k + 1) / 2);
    expect(read(user, target, kCount) == std::vector<float>(kCount, sum), "by the function");
  }
}

// 40 inputs take two launches.
void sums_and_means_of_many(BoardBootstrap&) {
  const Folder folder;
  const User user;
  user.make_current();
  Kernels kernels(driver(), 0, folder.options());
  kernels.prepare(Op::kSum, DType::kFloat32);
  CudaStream stream(driver());
  for (const std::size_t k : {2U, 3U, 4U, 8U, 32U, 40U}) {
    constexpr std::size_t kCount = 1003;
    const std::vector<const void*> inputs = vectors(user, k, kCount);
    const Address target = user.allocate(kCount * sizeof(float));
    void* const targets[] = {pointer_to(target)};
    KernelCall call{.targets = targets, .inputs = inputs, .count = kCount};
    kernels.launch(stream.get(), call);
    stream.synchronize();
    const float sum = static_cast<float>(k * (k + 1) / 2);
    expect(read(user, target, kCount) == std::vector<float>(kCount, sum), "a sum");
    call.scale = KernelCall::Scale{static_cast<double>(k), true};
    kernels.launch(stream.get(), call);
    stream.synchronize();
    expect(read(user, target, kCount) == std::vector<float>(kCount, sum / float(k)), "a mean");
    void* const last[] = {const_cast<void*>(inputs.back())};
    call.targets = last;
    kernels.launch(stream.get(), call);
    stream.synchronize();
    expect(read(user, reinterpret_cast<Address>(last[0]), kCount) ==
               std::vector<float>(kCount, sum / float(k)),
           "a mean in the place of the last input");
  }
}

// Copies of many lengths and offsets, to and from host memory, more than one launch takes.
void copies_of_many(BoardBootstrap&) {
  const Folder folder;
  const User user;
  user.make_current();
  Kernels kernels(driver(), 0, folder.options());
  expect(kernels.compile_copies() && !kernels.has_copies(), "compiled, not loaded");
  expect(kernels.load_copies() && kernels.has_copies(), "and loaded");
  CudaStream stream(driver());
  constexpr std::size_t kParts = 200, kRoom = std::size_t{1} << 20;
  const PinnedAllocation pinned(driver(), kRoom), other(driver(), kRoom);
  auto* const from = static_cast<unsigned char*>(pinned.get());
  auto* const to = static_cast<unsigned char*>(other.get());
  for (std::size_t at = 0; at < kRoom; ++at)
    from[at] = static_cast<unsigned char>(at * 7 + at / 251);
  std::memset(to, 0, kRoom);
  const Address array = user.allocate(kRoom);
  std::vector<CopyPart> there, back;
  std::size_t place = 0, copied = 0;
  for (std::size_t part = 0; part < kParts; ++part) {
    // Lengths that are multiples of 4 and 16 bytes, odd ones, zero, and longer than a tile.
    const std::size_t bytes = part % 67 == 5  ? 40'000 + part
                              : part % 3 == 0 ? 4 * part
                                              : 37 * (part % 9);
    const std::size_t on_device = kRoom / 2 > place ? place + part % 2 : place;
    there.push_back({pointer_to(array + on_device), from + place, bytes});
    back.push_back({to + place, pointer_to(array + on_device), bytes});
    place += bytes + 16 - bytes % 16 + 16;
    copied += bytes;
  }
  expect(place < kRoom && copied > 100'000, "there is room");
  const long before = user.count("launches");
  kernels.launch(stream.get(), there);
  kernels.launch(stream.get(), back);
  stream.synchronize();
  expect(user.count("launches") == before + 4, "two launches each");
  for (const CopyPart& part : back) {
    const auto* const found = static_cast<const unsigned char*>(part.target);
    const std::size_t at = static_cast<std::size_t>(found - to);
    expect(std::memcmp(found, from + at, part.bytes) == 0, "the same bytes");
    expect(found[part.bytes] == 0, "and none behind them");
  }
}

void compiled_once_and_kept(BoardBootstrap&) {
  const Folder folder;
  const User user;
  user.make_current();
  const auto prepared = [&](DType dtype) {
    Kernels(driver(), 0, folder.options()).prepare(Op::kSum, dtype);
  };
  prepared(DType::kFloat32);
  prepared(DType::kFloat32);
  expect(folder.compilations() == 1 && folder.files().size() == 1, "compiled once");
  prepared(DType::kInt64);
  expect(folder.compilations() == 2 && folder.files().size() == 2, "another type");
  for (const auto& file : folder.files()) std::filesystem::resize_file(file, 20);
  prepared(DType::kFloat32);
  expect(folder.compilations() == 3, "a damaged file is made again");
  prepared(DType::kFloat32);
  expect(folder.compilations() == 3, "and serves");
}

// If the driver refuses stored code, it gets new code. If it refuses that, the error stays. Other
// errors may be over in the next call, which does not compile again.
void code_that_the_driver_refuses(BoardBootstrap&) {
  const Folder folder;
  const User user;
  user.make_current();
  Kernels kernels(driver(), 0, folder.options());
  const auto said_of = [&](DType dtype, int code) {
    user.fail("cuModuleLoadData", code);
    kernels.compile(Op::kSum, dtype);
    const std::string said = message_of<DeviceError>([&] { kernels.prepare(Op::kSum, dtype); });
    user.fail("cuModuleLoadData", 0);
    return said;
  };
  std::string said = said_of(DType::kFloat32, 2);
  expect(said.find("CUDA_ERROR_OUT_OF_MEMORY") != std::string::npos, "not now: " + said);
  kernels.prepare(Op::kSum, DType::kFloat32);
  expect(folder.compilations() == 1, "compiled once");
  said = said_of(DType::kInt64, 200);
  expect(said.find("CUDA_ERROR_INVALID_IMAGE") != std::string::npos, "refused: " + said);
  const std::size_t compiled = folder.compilations();
  for (int turn = 0; turn < 2; ++turn) {
    const std::string again =
        message_of<DeviceError>([&] { kernels.prepare(Op::kSum, DType::kInt64); });
    expect(again == said, "refused again: " + again);
  }
  expect(folder.compilations() == compiled, "and not compiled again");
}

// Other work of the device waits for a word that the host writes later, as calls in stream order
// do.
void nothing_is_loaded_once_it_is_prepared(BoardBootstrap&) {
  const Folder folder;
  const User user;
  user.make_current();
  Kernels kernels(driver(), 0, folder.options());
  kernels.prepare(Op::kSum, DType::kFloat32);
  CudaStream stream(driver()), waiting(driver());
  const PinnedAllocation page(driver(), 64);
  auto* const word = static_cast<std::atomic<std::uint32_t>*>(page.get());
  word->store(0);
  driver().check(driver().call.StreamWaitValue32(waiting.get(), address_of(word), 1, 0), "a wait");
  const Address target = written(user, {1, 2, 3});
  const void* const inputs[] = {pointer_to(target), pointer_to(target)};
  void* const targets[] = {pointer_to(target)};
  user.set("synchronises", 1);
  for (const Op op : {Op::kSum, Op::kProd, Op::kMin, Op::kMax}) {
    kernels.launch(stream.get(), {.op = op, .targets = targets, .inputs = inputs, .count = 3});
  }
  user.set("synchronises", 0);
  word->store(1);
  stream.synchronize();
  waiting.synchronize();
}

// Copies of the simulated compiler, with these versions in their names.
std::vector<std::string> compilers(const Folder& folder, std::initializer_list<const char*> all) {
  std::vector<std::string> files;
  for (const char* const version : all) {
    files.push_back(folder.path() + "/libnvrtc.so." + version);
    std::filesystem::copy_file(kSimulated, files.back());
  }
  return files;
}

// The driver loads code from toolkits of its own major version. It does not link code from a
// toolkit newer than itself.
void operations_are_linked_by_the_compilers_linker(BoardBootstrap&) {
  setenv("SIMULATED_CUDA_VERSION", "12040", 1);
  const Folder folder;
  const User user;
  user.make_current();
  const Op op = user_op("launch_test-3", 3), broken = user_op("launch_test-4", 4);
  device::add_user_function(op, DType::kFloat32,
                            {code_of(reinterpret_cast<void*>(&sum_of<float>))});
  device::add_user_function(broken, DType::kFloat32, {"no code"});
  Options options = folder.options();
  const std::string said =
      message_of<DeviceError>([&] { Kernels(driver(), 0, options).prepare(op, DType::kFloat32); });
  expect(said.find("cuLinkAddData: CUDA_ERROR_UNSUPPORTED_PTX_VERSION") == 0, said);
  options.linkers = {"libnone.so", kSimulated};
  Kernels kernels(driver(), 0, options);
  kernels.prepare(op, DType::kFloat32);
  const auto refused = [&] {
    return message_of<DeviceError>([&] { kernels.prepare(broken, DType::kFloat32); });
  };
  expect(refused().find("nvJitLinkAddData: code 4") == 0, refused());
  const std::size_t compiled = folder.compilations();
  refused();
  expect(folder.compilations() == compiled, "nothing is tried again");
}

void a_compiler_newer_than_the_driver_is_left_alone(BoardBootstrap&) {
  const Folder folder;
  const User user;
  user.make_current();
  Options options = folder.options();
  options.compilers = compilers(folder, {"13.0", "11.4", "12.9"});
  expect(Compiler::load(options.compilers, driver().version).version() == 12090, "that of 12.9");
  Kernels(driver(), 0, options).prepare(Op::kSum, DType::kFloat32);
  options.compilers = {options.compilers[0], options.compilers[1]};
  const std::string said = message_of<DeviceError>(
      [&] { Kernels(driver(), 0, options).prepare(Op::kSum, DType::kInt64); });
  for (const char* const part :
       {"a driver of CUDA 12.8", "of CUDA 13.0", "NVRTC 11.4 is too old"}) {
    expect(said.find(part) != std::string::npos, said);
  }
}

void where_the_driver_refuses_code_the_next_compiler_is_tried(BoardBootstrap&) {
  const Folder folder;
  const User user;
  user.make_current();
  Options options = folder.options();
  options.compilers = compilers(folder, {"12.9", "12.4"});
  setenv("SIMULATED_CUDA_REFUSES", "12.9", 1);
  Kernels(driver(), 0, options).prepare(Op::kSum, DType::kFloat32);
  setenv("SIMULATED_CUDA_REFUSES", "12.4", 1);
  Kernels(driver(), 0, options).prepare(Op::kSum, DType::kFloat32);
  expect(folder.files().size() == 2, "each compiler's code is kept for itself");
  options.compilers.resize(1);
  setenv("SIMULATED_CUDA_REFUSES", "12.9", 1);
  const std::string said = message_of<DeviceError>(
      [&] { Kernels(driver(), 0, options).prepare(Op::kSum, DType::kFloat32); });
  expect(said.find("UNSUPPORTED_PTX") != std::string::npos, said);
  expect(said.find("The device can be used further") != std::string::npos, said);
  unsetenv("SIMULATED_CUDA_REFUSES");
}

void works_without_a_folder(BoardBootstrap&) {
  const Folder folder;
  const User user;
  user.make_current();
  for (const std::string& where : {std::string(), std::string("/proc/none")}) {
    Options options = folder.options();
    options.folder = where;
    Kernels(driver(), 0, options).prepare(Op::kSum, DType::kFloat32);
  }
  expect(folder.compilations() == 2, "nothing is kept");
}

void says_what_is_missing(BoardBootstrap&) {
  const User user;
  user.make_current();
  Kernels kernels(driver(), 0, {kSimulated, {"libnone.so.1", "libnone.so.2"}});
  std::string said;
  try {
    kernels.prepare(Op::kSum, DType::kFloat32);
  } catch (const DeviceError& error) {
    said = error.what();
  }
  expect(said.find("no NVRTC") != std::string::npos &&
             said.find("libnone.so.1, libnone.so.2") != std::string::npos,
         "what is missing: " + said);
}

void addresses_that_are_none_of_the_devices(BoardBootstrap&) {
  const Folder folder;
  const User user;
  user.make_current();
  Kernels kernels(driver(), 0, folder.options());
  kernels.prepare(Op::kSum, DType::kFloat32);
  CudaStream stream(driver());
  const Address freed = written(user, {1, 2, 3}), target = user.allocate(1 << 20);
  user.free(freed);
  const void* const inputs[] = {pointer_to(target), pointer_to(freed)};
  void* const targets[] = {pointer_to(target)};
  kernels.launch(stream.get(), {.targets = targets, .inputs = inputs, .count = 3});
  bool failed = false;
  try {
    stream.synchronize();
  } catch (const DeviceError&) {
    failed = true;
  }
  expect(failed, "memory that is freed is not read");
}

void nvrtc_compiles_all_types(BoardBootstrap&) {
  const char* const library = std::getenv("NVRTC");
  if (library == nullptr) return;
  alarm(300);  // takes minutes
  constexpr std::string_view kElf = "\177ELF";
  for (const DType dtype :
       {DType::kFloat8E4M3FN, DType::kFloat8E5M2, DType::kFloat16, DType::kBFloat16,
        DType::kFloat32, DType::kFloat64, DType::kInt32, DType::kInt64, DType::kUInt8}) {
    const Compiler& compiler = Compiler::load({library}, 99990);
    for (const int capability : {75, 90}) {
      const std::string code = Kernels::code_for(compiler, dtype, capability, "");
      expect(code.starts_with(kElf), "a cubin of " + std::string(name_of(dtype)));
    }
    const std::string newer = Kernels::code_for(compiler, dtype, 990, "");
    expect(newer.find(".target sm_") != std::string::npos, "PTX for a device of the future");
  }
}

int run_all(const std::string& part) {
  Report report(part);
  const auto on = on_ranks(report, Ranks::kProcesses);
  const auto alone = [&](const char* name, const Body& body) { on(1, name, body); };
  alone("sums_and_means_of_many", sums_and_means_of_many);
  alone("copies_of_many", copies_of_many);
  alone("operations_of_the_programs_own", operations_of_the_programs_own);
  alone("compiled_once_and_kept", compiled_once_and_kept);
  alone("code_that_the_driver_refuses", code_that_the_driver_refuses);
  alone("nothing_is_loaded_once_it_is_prepared", nothing_is_loaded_once_it_is_prepared);
  alone("operations_are_linked_by_the_compilers_linker",
        operations_are_linked_by_the_compilers_linker);
  alone("a_compiler_newer_than_the_driver_is_left_alone",
        a_compiler_newer_than_the_driver_is_left_alone);
  alone("where_the_driver_refuses_code_the_next_compiler_is_tried",
        where_the_driver_refuses_code_the_next_compiler_is_tried);
  alone("works_without_a_folder", works_without_a_folder);
  alone("says_what_is_missing", says_what_is_missing);
  alone("addresses_that_are_none_of_the_devices", addresses_that_are_none_of_the_devices);
  alone("nvrtc_compiles_all_types", nvrtc_compiles_all_types);
  return report.finish();
}

}  // namespace
}  // namespace gradred::testing

// usage: launch_test [part of a test's name]
int main(int argc, char** argv) { return gradred::testing::run_all(argc > 1 ? argv[1] : ""); }
