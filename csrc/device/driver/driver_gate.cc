#include "device/driver/driver_gate.h"

namespace gradred::device {

DriverGate::Open::Open(DriverGate& gate) : gate_(gate) {
  const std::lock_guard lock(gate.opening_);
  ++gate.open_;
}

bool DriverGate::while_none_is_open(const std::function<void()>& have_the_driver_wait) {
  const std::lock_guard lock(opening_);
  if (open_.load(std::memory_order_relaxed) > 0) return false;
  have_the_driver_wait();
  return true;
}

}  // namespace gradred::device
