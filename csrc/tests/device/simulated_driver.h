// What the parts of the simulated driver that have no state of their own need of it.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string_view>

#include "simulated_memory.h"

namespace simulated {

enum Code {
  kSuccess = 0,
  kInvalidValue = 1,
  kOutOfMemory = 2,
  kNotInitialized = 3,
  kNoDevice = 100,
  kInvalidDevice = 101,
  kInvalidImage = 200,
  kInvalidContext = 201,
  kInvalidHandle = 400,
  kNotFound = 500,
  kNotReady = 600,
  kIllegalAddress = 700,
};

constexpr int kCapability = 90;  // of every device: 9.0

// How each function begins: with the code that it is to return at once, if any.
int failing_in_context(std::string_view name);
// Work for a stream; a device whose work says false has met an illegal address. Returns a code.
int give(void* stream, std::function<bool()> work);
// Memory::reachable() of the device's.
std::byte* reachable(Address address, std::size_t bytes, std::shared_ptr<void>& keep);

long launches();  // of kernels, so far

}  // namespace simulated
