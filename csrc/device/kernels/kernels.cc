#include "device/kernels/kernels.h"

#include <algorithm>
#include <exception>
#include <iterator>
#include <string_view>
#include <vector>

#include "base/errors.h"
#include "device/compile/code_cache.h"
#include "device/compile/compiler.h"
#include "device/compile/linker.h"
#include "device/compile/user_functions.h"
#include "device/kernels/arguments.h"
#include "device/kernels/kernel_sources.h"

namespace gradred::device {
namespace {

using gradred_kernels::Arguments;
using gradred_kernels::kMostInputs;

constexpr unsigned kThreads = 256;      // in a block
constexpr unsigned kBlocksPerUnit = 8;  // blocks of a launch per multiprocessor
constexpr std::size_t kBytesPerThread = 16;
// Each block has 16 KiB in flight. By that figure, which is not measured, about ten blocks keep a
// bus to the host busy, and the rest of the device can compute.
constexpr unsigned kMostCopyBlocks = 32;

#define GRADRED_ELEMENT_NAME(element) #element,
constexpr std::string_view kTypes[] = {GRADRED_FOR_ELEMENTS(GRADRED_ELEMENT_NAME)};
#undef GRADRED_ELEMENT_NAME

// Whether the driver has refused the code but might accept that of another compiler.
bool is_of_code(Result code) {
  constexpr Result kOfCode[] = {kInvalidImage,  kNoBinaryForDevice, kInvalidPtx,
                                kNoJitCompiler, kUnsupportedPtx,    kJitIsOff};
  return std::ranges::find(kOfCode, code) != std::end(kOfCode);
}

struct Source {
  const char* file;
  const char* text;
  const char* tag;  // suffix of the type in the names of cache files
};

Source source_of(KernelSource source) {
  switch (source) {
    case KernelSource::kUser:
      return {"reduce.cu", kReduceSource, "-user"};
    case KernelSource::kShots:
      return {"shots.cu", kShotsSource, "-shots"};
    case KernelSource::kUserShots:
      return {"shots.cu", kShotsSource, "-user-shots"};
    case KernelSource::kCopies:
      return {"copies.cu", kCopiesSource, "-copies"};
    default:
      return {"reduce.cu", kReduceSource, ""};
  }
}

// The beginning of the names of the kernels.
std::string prefix_of(KernelSource source, DType dtype) {
  return source == KernelSource::kCopies ? "gradred_" : "gradred_" + std::string(name_of(dtype));
}

// The names of a source's kernels, without the prefix.
std::vector<std::string> names_of(KernelSource source) {
  std::vector<std::string> names;
  const auto add = [&names](std::initializer_list<std::string_view> operations,
                            std::initializer_list<std::string_view> ways) {
    for (const std::string_view operation : operations) {
      for (const std::string_view way : ways) {
        names.push_back(std::string(operation) + std::string(way));
      }
    }
  };
  switch (source) {
    case KernelSource::kReduce:
      add({"_sum", "_prod", "_min", "_max", "_scaled_sum"}, {"_0", "_2", "_4", "_8"});
      break;
    case KernelSource::kUser:
      add({"_user"}, {"_0", "_2", "_4"});
      break;
    case KernelSource::kShots:
      add({"_sum", "_prod", "_min", "_max"}, {"_one", "_two"});
      break;
    case KernelSource::kUserShots:
      add({"_user"}, {"_one", "_two"});
      break;
    case KernelSource::kCopies:
      add({"copies"}, {""});
      break;
  }
  return names;
}

}  // namespace

bool Kernels::has_type(DType dtype) {
  return std::ranges::find(kTypes, name_of(dtype)) != std::end(kTypes);
}

std::string Kernels::why_not(Op op, DType dtype) {
  constexpr Op kOps[] = {Op::kSum, Op::kProd, Op::kMin, Op::kMax, Op::kAvg, Op::kPremul};
  const std::string none =
      "there is no kernel for " + std::string(name_of(op)) + " of " + std::string(name_of(dtype));
  if (!has_type(dtype)) return none;
  if (std::ranges::find(kOps, op) != std::end(kOps)) return "";
  const UserFunction* const function = is_users(op) ? find_user_function(op, dtype) : nullptr;
  if (function == nullptr) return none;
  return function->code.empty() ? none + ": " + function->why_not : "";
}

Kernels::Key Kernels::key_of(Op op, DType dtype, bool waits_for_peers) {
  if (is_users(op)) {
    return {dtype, waits_for_peers ? KernelSource::kUserShots : KernelSource::kUser, op};
  }
  return {dtype, waits_for_peers ? KernelSource::kShots : KernelSource::kReduce};
}

int Kernels::attribute(int which) const {
  int value = 0;
  driver_.check(driver_.call.DeviceGetAttribute(&value, which, device_), "cuDeviceGetAttribute");
  return value;
}

std::string Kernels::code_for(const Compiler& compiler, DType dtype, int capability,
                              const std::string& folder, KernelSource source) {
  const std::string element(name_of(dtype));
  const auto [file, text, tag] = source_of(source);
  const std::string by = std::to_string(compiler.version());
  const CodeCache cache(folder, element + tag + "-sm_" + std::to_string(capability),
                        {kReduceSource, text, kKernelArguments, by});
  if (std::optional<std::string> kept = cache.read()) return *std::move(kept);
  std::vector<std::string> options{"--std=c++17", "-DGRADRED_ELEMENT=" + element};
  if (is_users(source)) {  // the program's function is linked to it
    options.insert(options.end(), {"-DGRADRED_USER_OP", "--relocatable-device-code=true"});
  }
  const std::string code = compiler.compile(
      {file, text}, {{"arguments.h", kKernelArguments}, {"reduce.cu", kReduceSource}}, capability,
      options);
  cache.write(code);
  return code;
}

// Uses the linker of the compiler's toolkit if it is available and the code is a cubin. PTX means
// that the compiler is older than the device; then its linker is, too, and the driver links.
std::string Kernels::linked_to(const std::string& function, const std::string& code,
                               const Compiler& compiler) const {
  const Linker* const linker =
      is_cubin(code) ? Linker::find(options_.linkers, compiler.version()) : nullptr;
  if (linker == nullptr) return linked(driver_, {code, function});
  return linker->link({code, function},
                      10 * attribute(kCapabilityMajor) + attribute(kCapabilityMinor));
}

CudaModule Kernels::load_code(const std::string& code, const Key& key,
                              const Compiler& compiler) const {
  if (!is_users(key.source)) return CudaModule(driver_, code);
  const UserFunction* const function = find_user_function(key.op, key.dtype);
  check(function != nullptr, "kernels for a function that nobody has added");
  return CudaModule(driver_, linked_to(function->code, code, compiler));
}

// If the driver or the linker refuses code from the cache, because it is damaged or of another
// version, it is compiled again. Other errors of the driver, such as too little memory, say nothing
// about the code.
CudaModule Kernels::load_by(const Compiler& compiler, const Key& key, bool is_first) const {
  const int capability = 10 * attribute(kCapabilityMajor) + attribute(kCapabilityMinor);
  const auto compiled = codes_.find(key);
  const bool is_compiled = is_first && compiled != codes_.end() && !compiled->second.empty();
  const std::string code =
      is_compiled ? compiled->second
                  : code_for(compiler, key.dtype, capability, options_.folder, key.source);
  try {
    return load_code(code, key, compiler);
  } catch (const DeviceError& error) {
    const auto* const of_driver = dynamic_cast<const DriverError*>(&error);
    if (of_driver != nullptr && !is_of_code(of_driver->code())) throw;
    const std::string made = code_for(compiler, key.dtype, capability, "", key.source);
    if (made == code) throw;
    return load_code(made, key, compiler);
  }
}

// Uses the first compiler whose code the driver accepts. If there is none, throws the error of the
// first compiler.
CudaModule Kernels::load(const Key& key) const {
  std::exception_ptr refusal;
  for (std::size_t turn = 0;; ++turn) {
    const Compiler* compiler = nullptr;
    try {
      compiler = &Compiler::load(options_.compilers, driver_.version, turn);
      return load_by(*compiler, key, turn == 0);
    } catch (const DriverError& error) {
      if (!is_of_code(error.code())) throw;
      if (refusal == nullptr) refusal = std::current_exception();
    } catch (const DeviceError&) {
      if (refusal == nullptr) refusal = std::current_exception();
      if (compiler == nullptr) break;
    }
  }
  std::rethrow_exception(refusal);
}

// The driver loads modules and functions lazily, so prepare() looks up every function as well.
void Kernels::prepare(Op op, DType dtype, bool waits_for_peers) {
  prepare(key_of(op, dtype, waits_for_peers));
}

void Kernels::prepare(const Key& key) {
  const std::lock_guard loading(loading_);
  {
    const std::lock_guard lock(mutex_);
    if (loaded_.contains(key)) return;
    if (const auto found = refused_.find(key); found != refused_.end()) {
      throw DeviceError(found->second);
    }
  }
  const auto units = static_cast<unsigned>(attribute(kMultiprocessors));
  Loaded made{load_once(key)};
  for (const std::string& name : names_of(key.source)) {
    made.functions[name] = made.module.function(prefix_of(key.source, key.dtype) + name);
  }
  codes_.erase(key);
  const std::lock_guard lock(mutex_);
  most_blocks_ = kBlocksPerUnit * units;
  loaded_.emplace(key, std::move(made));
}

bool Kernels::has(const Key& key) const {
  const std::lock_guard lock(mutex_);
  return loaded_.contains(key);
}

bool Kernels::has(Op op, DType dtype) const { return has(key_of(op, dtype, false)); }

bool Kernels::has_refused(Op op, DType dtype) const {
  const std::lock_guard lock(mutex_);
  return refused_.contains(key_of(op, dtype, false));
}

std::string Kernels::first_code(const Key& key) const {
  const Compiler& compiler = Compiler::load(options_.compilers, driver_.version, 0);
  const int capability = 10 * attribute(kCapabilityMajor) + attribute(kCapabilityMinor);
  return code_for(compiler, key.dtype, capability, options_.folder, key.source);
}

void Kernels::compile(Op op, DType dtype) {
  const Key key = key_of(op, dtype, false);
  const std::lock_guard loading(loading_);
  {
    const std::lock_guard lock(mutex_);
    if (loaded_.contains(key) || refused_.contains(key) || codes_.contains(key)) return;
  }
  try {
    codes_[key] = first_code(key);
  } catch (const DeviceError&) {  // prepare() tries the next compiler and reports the error
  }
}

// Remembers refusals: compiling and linking take seconds while peers wait, so they are not repeated
// in each call. Other errors of the driver may be over in the next call, for which compile() has
// kept the code.
CudaModule Kernels::load_once(const Key& key) {
  try {
    return load(key);
  } catch (const DriverError& error) {
    if (is_of_code(error.code())) note_refusal(key, error);
    throw;
  } catch (const DeviceError& error) {  // from the compiler or its linker
    note_refusal(key, error);
    throw;
  }
}

void Kernels::note_refusal(const Key& key, const DeviceError& error) {
  const std::lock_guard lock(mutex_);
  refused_.emplace(key, error.what());
}

FunctionHandle Kernels::function(const Key& key, const std::string& name) const {
  const std::lock_guard lock(mutex_);
  const auto found = loaded_.find(key);
  check(found != loaded_.end(), "kernels that nobody has prepared");
  return found->second.functions.at(name);
}

// If a launch cannot take all inputs, they are folded by several launches; sums of 16-bit floats
// are rounded in between. Such a call has one target, which the first launch writes. If the target
// is one of the inputs, it is moved to the first launch, so that it is read there. Otherwise the
// inputs are folded from the left.
void Kernels::launch(StreamHandle stream, const KernelCall& call) {
  static_assert(kMostTargets == kMostInputs);
  check(call.targets.size() == 1 || call.inputs.size() <= kMostInputs,
        "targets that are written before all is read");
  check(call.targets.size() <= kMostTargets, "a kernel with too many targets");
  std::vector<const void*> ordered(call.inputs.begin(), call.inputs.end());
  const auto own = std::ranges::find(ordered, call.targets[0]);
  if (own - ordered.begin() >= static_cast<std::ptrdiff_t>(kMostInputs) && own != ordered.end()) {
    std::rotate(ordered.begin(), own, own + 1);
  }
  KernelCall part = call;
  std::vector<const void*> inputs;
  std::size_t done = 0;
  while (ordered.size() - done + inputs.size() > kMostInputs) {
    const std::size_t taken = kMostInputs - inputs.size();
    const auto begin = ordered.begin() + static_cast<std::ptrdiff_t>(done);
    inputs.insert(inputs.end(), begin, begin + static_cast<std::ptrdiff_t>(taken));
    part.inputs = inputs;
    part.scale.reset();
    launch_one(stream, part);
    done += taken;
    inputs = {call.targets[0]};
  }
  inputs.insert(inputs.end(), ordered.begin() + static_cast<std::ptrdiff_t>(done), ordered.end());
  part.inputs = inputs;
  part.scale = call.scale;
  launch_one(stream, part);
}

void Kernels::launch_one(StreamHandle stream, const KernelCall& call) {
  if (call.count == 0) return;
  check(!call.scale || call.op == Op::kSum, "a kernel that scales what is not a sum");
  const std::size_t k = call.inputs.size(), element = size_of(call.dtype);
  Arguments arguments{};
  std::ranges::copy(call.targets, arguments.targets);
  arguments.written = static_cast<unsigned>(call.targets.size());
  std::ranges::copy(call.inputs, arguments.inputs);
  for (const void* const address : call.inputs) {
    check(reinterpret_cast<std::uintptr_t>(address) % element == 0, "an input that is not aligned");
  }
  arguments.count = call.count;
  arguments.k = static_cast<unsigned>(k);
  if (call.scale) {
    arguments.factor = call.scale->factor;
    arguments.divide = call.scale->divide;
  }
  const bool special = k == 2 || k == 4 || (k == 8 && !is_users(call.op));
  const std::string operation = call.scale          ? "scaled_sum"
                                : is_users(call.op) ? "user"
                                                    : std::string(name_of(call.op));
  const FunctionHandle code = function(key_of(call.op, call.dtype, false),
                                       "_" + operation + "_" + std::to_string(special ? k : 0));
  const std::size_t per_block = kThreads * kBytesPerThread / element;
  const auto blocks = static_cast<unsigned>(
      std::clamp<std::size_t>((call.count + per_block - 1) / per_block, 1, most_blocks_));
  launch(stream, code, blocks, &arguments);
}

bool Kernels::has_copies() const { return has(copies_key()); }

bool Kernels::compile_copies() {
  const std::lock_guard loading(loading_);
  const auto found = codes_.find(copies_key());
  if (found != codes_.end()) return !found->second.empty();
  std::string code;
  try {
    code = first_code(copies_key());
  } catch (const DriverError&) {
    // Perhaps an error of the program's own work, which the next call no longer finds.
    return false;
  } catch (const DeviceError&) {
  }
  return !(codes_[copies_key()] = code).empty();
}

bool Kernels::load_copies() {
  try {
    prepare(copies_key());  // if the driver refuses the code, it is compiled again
    return true;
  } catch (const DriverError& error) {
    if (!is_of_code(error.code())) return false;
  } catch (const DeviceError&) {  // from compiling it again
  }
  const std::lock_guard loading(loading_);
  codes_[copies_key()] = "";
  return false;
}

void Kernels::launch(StreamHandle stream, std::span<const CopyPart> parts) {
  using gradred_kernels::CopyArguments;
  using gradred_kernels::kMostCopies;
  using gradred_kernels::kTileBytes;
  const FunctionHandle code = function(copies_key(), "copies");
  CopyArguments arguments{};
  unsigned tiles = 0;
  const auto launch_those = [&] {
    if (arguments.parts > 0) launch(stream, code, std::min(tiles, kMostCopyBlocks), &arguments);
    arguments.parts = tiles = 0;
  };
  for (const CopyPart& part : parts) {
    if (part.bytes == 0) continue;
    check(part.bytes < 1U << 31, "a copy that is no small one");
    if (arguments.parts == kMostCopies) launch_those();
    const unsigned at = arguments.parts++;
    arguments.targets[at] = part.target;
    arguments.sources[at] = part.source;
    arguments.bytes[at] = static_cast<unsigned>(part.bytes);
    tiles += static_cast<unsigned>((part.bytes + kTileBytes - 1) / kTileBytes);
    arguments.tiles[at] = tiles;
  }
  launch_those();
}

unsigned Kernels::launch(StreamHandle stream, const ShotCall& call) {
  const std::string operation = is_users(call.op) ? "user" : std::string(name_of(call.op));
  const FunctionHandle code =
      function(key_of(call.op, call.dtype, true), "_" + operation + (call.two ? "_two" : "_one"));
  const std::size_t bytes = call.arguments.count * size_of(call.dtype);
  constexpr std::size_t kPerBlock = kThreads * kBytesPerThread;
  const auto blocks = static_cast<unsigned>(std::clamp<std::size_t>(
      (bytes + kPerBlock - 1) / kPerBlock, 1, gradred_kernels::kMostShotBlocks));
  ShotCall copy = call;
  launch(stream, code, blocks, &copy.arguments);
  return blocks;
}

void Kernels::launch(StreamHandle stream, FunctionHandle code, unsigned blocks,
                     void* arguments) const {
  void* parameters[] = {arguments};
  driver_.check(
      driver_.call.LaunchKernel(code, blocks, 1, 1, kThreads, 1, 1, 0, stream, parameters, nullptr),
      "cuLaunchKernel");
}

}  // namespace gradred::device
