// The kernels of csrc/device/kernels, compiled or taken from the disk where they are first wanted.
#pragma once

#include <cstddef>
#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <string>

#include "base/types.h"
#include "device/kernels/arguments.h"
#include "device/options.h"
#include "device/owners.h"
#include "memory/memory.h"

namespace gradred::device {

class Compiler;

// target = inputs[0] op inputs[1] op ..., and then scaled.
struct KernelCall {
  struct Scale {
    double factor = 1.0;
    bool divide = false;
  };

  Op op = Op::kSum;  // kSum, kProd, kMin, kMax or a program's own; kSum if it is scaled
  DType dtype = DType::kFloat32;
  std::span<void* const> targets;       // each gets the result; they may be among the inputs
  std::span<const void* const> inputs;  // at least 2, or 1 that is scaled
  std::size_t count = 0;
  std::optional<Scale> scale{};
};

// Of a kernel that waits for its peers' (shots.cu).
struct ShotCall {
  Op op = Op::kSum;  // as above
  DType dtype = DType::kFloat32;
  bool two = false;
  gradred_kernels::ShotArguments arguments{};
};

// The files of csrc/device/kernels: reduce.cu and shots.cu, also for a program's own operation, and
// copies.cu, which knows no types.
enum class KernelSource : std::uint8_t { kReduce, kUser, kShots, kUserShots, kCopies };

constexpr bool is_users(KernelSource source) {
  return source == KernelSource::kUser || source == KernelSource::kUserShots;
}

// Of one context, which is current in each call. Thread-safe.
class Kernels {
 public:
  Kernels(const Driver& driver, Ordinal device, const Options& options)
      : driver_(driver), device_(device), options_(options) {}

  static constexpr std::size_t kMostTargets = 32;  // of a launch, all of whose inputs are as many
  static bool has_type(DType dtype);
  // Empty: there are kernels for it, also for Op::kAvg and kPremul, as scaled sums. Else why not.
  static std::string why_not(Op op, DType dtype);
  // Loads those of a type, which may take seconds the first time, and stop the device. Throws
  // DeviceError: there is no compiler, or it refuses.
  void prepare(Op op, DType dtype, bool waits_for_peers = false);
  // Whether that is done; and the part of it which stops no device, as far as it can be had.
  bool has(Op op, DType dtype) const;
  void compile(Op op, DType dtype);
  void launch(StreamHandle stream, const KernelCall& call);    // of a type that is prepared
  unsigned launch(StreamHandle stream, const ShotCall& call);  // of so many blocks
  // The kernel that copies: whether it is loaded; compiles it, which may take a second, and stops
  // no device; loads what has been compiled. False: not now, or never, where there is no compiler
  // or the driver takes no code of one.
  bool has_copies() const;
  bool compile_copies();
  bool load_copies();
  void launch(StreamHandle stream, std::span<const CopyPart> parts);  // each less than 2 GiB

  // Machine code for a device of this compute capability, from the disk if this compiler's is there
  // (`folder` as in Options).
  static std::string code_for(const Compiler& compiler, DType dtype, int capability,
                              const std::string& folder,
                              KernelSource source = KernelSource::kReduce);

 private:
  struct Key {
    DType dtype;
    KernelSource source;
    Op op = Op::kSum;  // is_users(): which

    auto operator<=>(const Key&) const = default;
  };
  struct Loaded {
    CudaModule module;
    std::map<std::string, FunctionHandle, std::less<>> functions{};
  };

  int attribute(int which) const;
  static Key copies_key() { return {DType::kUInt8, KernelSource::kCopies}; }
  bool has(const Key& key) const;
  std::string first_code(const Key& key) const;  // by the first compiler
  void prepare(const Key& key);
  static Key key_of(Op op, DType dtype, bool waits_for_peers);
  CudaModule load_once(const Key& key);
  void note_refusal(const Key& key, const DeviceError& error);
  CudaModule load(const Key& key) const;
  CudaModule load_by(const Compiler& compiler, const Key& key, bool is_first) const;
  std::string linked_to(const std::string& function, const std::string& code,
                        const Compiler& compiler) const;
  CudaModule load_code(const std::string& code, const Key& key, const Compiler& compiler) const;
  void launch_one(StreamHandle stream, const KernelCall& call);
  FunctionHandle function(const Key& key, const std::string& name) const;
  void launch(StreamHandle stream, FunctionHandle code, unsigned blocks, void* arguments) const;

  const Driver& driver_;
  const Ordinal device_;
  const Options options_;
  std::mutex loading_;  // of who loads, which may take until the device has nothing to do
  // What is compiled and not loaded, under it. Empty, of kCopies: it cannot be had.
  std::map<Key, std::string> codes_;
  mutable std::mutex mutex_;  // of what follows
  std::map<Key, Loaded> loaded_;
  std::map<Key, std::string>
      refused_;               // is_users(): what the driver, or its linker, will say again
  unsigned most_blocks_ = 0;  // of a launch
};

}  // namespace gradred::device
