// The mode of floating-point arithmetic: rounding, and whether denormals count as zero.
//
// Each thread has its own mode, and any library may change it. A library built with -ffast-math
// makes denormal results and operands count as zero in the thread that loads it. Ranks that each
// reduce the whole vector would then get different bits.
#pragma once

#include <cstdint>

namespace gradred {
namespace {  // compiled for several instruction sets, which must not share a copy

// While an object lives, its thread rounds to nearest and keeps denormals; its destructor restores
// the previous mode. A compiler may move some code across these bounds, such as arithmetic on
// values in registers; such code must be in a function that is not inlined.
class [[maybe_unused]] UsualFloatMode {
 public:
  UsualFloatMode() : changed_(control() & kMode) {
    if (changed_ != 0) [[unlikely]] {
      set_control(control() & ~kMode);
    }
  }
  ~UsualFloatMode() {
    if (changed_ != 0) [[unlikely]] {
      set_control(control() | changed_);  // keeps exception flags that were raised meanwhile
    }
  }
  UsualFloatMode(const UsualFloatMode&) = delete;
  UsualFloatMode& operator=(const UsualFloatMode&) = delete;

 private:
#if defined(__x86_64__)
  using Control = std::uint32_t;
  static constexpr Control kMode = 0xE040;  // rounding, flush to zero, denormals are zero

  static Control control() {
    Control value;
    asm volatile("stmxcsr %0" : "=m"(value)::"memory");
    return value;
  }
  static void set_control(Control value) { asm volatile("ldmxcsr %0" ::"m"(value) : "memory"); }
#elif defined(__aarch64__)
  using Control = std::uint64_t;
  static constexpr Control kMode = 0x03C80003;  // DN, FZ, RMode, FZ16; AH, FIZ

  static Control control() {
    Control value;
    asm volatile("mrs %0, fpcr" : "=r"(value)::"memory");
    return value;
  }
  static void set_control(Control value) { asm volatile("msr fpcr, %0" ::"r"(value) : "memory"); }
#else  // unknown processor: each thread computes in its own mode
  using Control = std::uint32_t;
  static constexpr Control kMode = 0;

  static Control control() { return 0; }
  static void set_control(Control) {}
#endif

  const Control changed_;
};

}  // namespace
}  // namespace gradred
