// The kernels of csrc/device/kernels. They are compiled, or read from the disk cache, when they are
// first needed.
#pragma once

#include <cstddef>
#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <string>

#include "base/types.h"
#include "device/driver/options.h"
#include "device/driver/owners.h"
#include "device/kernels/arguments.h"
#include "memory/memory.h"

namespace gradred::device {

class Compiler;

// target = inputs[0] op inputs[1] op ..., then scaled.
struct KernelCall {
  struct Scale {
    double factor = 1.0;
    bool divide = false;
  };

  // kSum, kProd, kMin, kMax or a program's own operation; kSum if the result is scaled.
  Op op = Op::kSum;
  DType dtype = DType::kFloat32;
  std::span<void* const> targets;       // each gets the result; a target may be one of the inputs
  std::span<const void* const> inputs;  // at least 2, or 1 if the result is scaled
  std::size_t count = 0;
  std::optional<Scale> scale{};
};

// A launch of a kernel that waits for the kernels of its peers (shots.cu).
struct ShotCall {
  Op op = Op::kSum;  // as in KernelCall
  DType dtype = DType::kFloat32;
  bool two = false;
  gradred_kernels::ShotArguments arguments{};
};

// The sources in csrc/device/kernels: reduce.cu and shots.cu, each also with a program's own
// operation, and copies.cu, which has no element type.
enum class KernelSource : std::uint8_t { kReduce, kUser, kShots, kUserShots, kCopies };

constexpr bool is_users(KernelSource source) {
  return source == KernelSource::kUser || source == KernelSource::kUserShots;
}

// The kernels of one context, which the caller makes current for each call. Thread-safe.
class Kernels {
 public:
  Kernels(const Driver& driver, Ordinal device, const Options& options)
      : driver_(driver), device_(device), options_(options) {}

  static constexpr std::size_t kMostTargets = 32;  // of a launch; also the limit for its inputs
  static bool has_type(DType dtype);
  // Returns an empty text if there are kernels for this operation and type, else the reason.
  // Op::kAvg and kPremul are scaled sums.
  static std::string why_not(Op op, DType dtype);
  // Loads the kernels of a type. The first time this may take seconds and stop the device. Throws
  // DeviceError if there is no compiler, or it reports an error.
  void prepare(Op op, DType dtype, bool waits_for_peers = false);
  // has(): whether prepare() has been done. compile(): does as much of it as possible without
  // stopping a device.
  bool has(Op op, DType dtype) const;
  bool has_refused(Op op, DType dtype) const;  // prepare() throws without trying again
  void compile(Op op, DType dtype);
  // prepare() must have been called for its type.
  void launch(StreamHandle stream, const KernelCall& call);
  unsigned launch(StreamHandle stream, const ShotCall& call);  // returns its number of blocks
  // The kernel that copies. has_copies(): whether it is loaded. compile_copies(): compiles it,
  // which may take a second but does not stop a device. load_copies(): loads the compiled code. The
  // last two return false if that is impossible now, or for good because there is no compiler or
  // the driver refuses its code.
  bool has_copies() const;
  bool compile_copies();
  bool load_copies();
  // Each part must be shorter than 2 GiB.
  void launch(StreamHandle stream, std::span<const CopyPart> parts);

  // Returns machine code for a device of this compute capability; reads it from the disk cache in
  // `folder` (see Options) if this compiler's code is there.
  static std::string code_for(const Compiler& compiler, DType dtype, int capability,
                              const std::string& folder,
                              KernelSource source = KernelSource::kReduce);

 private:
  struct Key {
    DType dtype;
    KernelSource source;
    Op op = Op::kSum;  // used only if is_users(source)

    auto operator<=>(const Key&) const = default;
  };
  struct Loaded {
    CudaModule module;
    std::map<std::string, FunctionHandle, std::less<>> functions{};
  };

  int attribute(int which) const;
  static Key copies_key() { return {DType::kUInt8, KernelSource::kCopies}; }
  bool has(const Key& key) const;
  std::string first_code(const Key& key) const;  // compiled by the first compiler
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
  std::mutex loading_;  // held while a thread loads, which may take until the device is idle
  // Code that is compiled but not loaded; protected by loading_. Empty for kCopies: not available.
  std::map<Key, std::string> codes_;
  mutable std::mutex mutex_;  // protects the members below
  std::map<Key, Loaded> loaded_;
  // Errors of the compiler, the driver or its linker about the code, which they would report again.
  std::map<Key, std::string> refused_;
  unsigned most_blocks_ = 0;  // of a launch
};

}  // namespace gradred::device
