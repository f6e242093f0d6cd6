// When the driver may keep a thread waiting for the device.
//
// Pinning memory, allocating or freeing device memory, opening a peer's memory and loading a module
// may keep the driver until the device is idle. While the device waits for peers that may be never,
// because what peers have to do first may have to wait for this thread. So everything that does any
// of these without being a request of the program passes this gate.
#pragma once

#include <atomic>
#include <functional>
#include <mutex>

namespace gradred::device {

// Each context has one gate.
class DriverGate {
 public:
  // While an object lives, the device may be waiting for peers.
  class Open {
   public:
    explicit Open(DriverGate& gate);
    ~Open() { --gate_.open_; }
    Open(const Open&) = delete;
    Open& operator=(const Open&) = delete;

   private:
    DriverGate& gate_;
  };
  // Calls the function unless an Open object exists; no object is created meanwhile. Returns
  // whether the function was called.
  bool while_none_is_open(const std::function<void()>& have_the_driver_wait);

 private:
  std::mutex opening_;  // held while the driver may wait
  std::atomic<int> open_{0};
};

}  // namespace gradred::device
