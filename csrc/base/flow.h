// An input that comes while the operation that reads it is under way, and a result that is taken
// away bit by bit: both from their beginning to their end.
#pragma once

#include <cstddef>

namespace gradred {

struct DeviceCall;  // memory/workspace.h

class Flow {
 public:
  virtual ~Flow() = default;
  // Whether the input's bytes before `end` are there. Does not block; throws where they will not
  // come.
  virtual bool has_input(std::size_t end) = 0;
  // The result's bytes before `end` are there.
  virtual void has_result(std::size_t end) = 0;
  // The same call in a device's memory, which is carried out there if all ranks have one; null:
  // none. Else to_host() comes before all of the above, and says where the host's vectors are.
  virtual DeviceCall* device() { return nullptr; }
  virtual void to_host(const void*& /*send*/, void*& /*recv*/) {}
};

}  // namespace gradred
