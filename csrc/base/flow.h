// An input that arrives while the operation that reads it runs, and a result that is taken away
// piece by piece. Both proceed from the first byte to the last.
#pragma once

#include <cstddef>

namespace gradred {

struct DeviceCall;  // memory/workspace.h

class Flow {
 public:
  virtual ~Flow() = default;
  // Whether the first `end` bytes of the input have arrived. Does not block. Throws if they will
  // not arrive.
  virtual bool has_input(std::size_t end) = 0;
  // Called when the first `end` bytes of the result are complete.
  virtual void has_result(std::size_t end) = 0;
  // The same call on arrays in device memory, or nullptr. If all ranks have one, the call is
  // carried out there. Otherwise to_host() is called before the functions above and returns where
  // the host's buffers are.
  virtual DeviceCall* device() { return nullptr; }
  virtual void to_host(const void*& /*send*/, void*& /*recv*/) {}
};

}  // namespace gradred
