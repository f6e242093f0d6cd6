// What the parts of the simulated driver that have no state of their own need of it.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string_view>

#include "device/kernels/arguments.h"
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
  kAlreadyMapped = 208,
  kInvalidHandle = 400,
  kNotFound = 500,
  kNotReady = 600,
  kIllegalAddress = 700,
};

constexpr int kCapability = 90;  // of every device: 9.0

// How each function begins: with the code that it is to return at once, if any. It waits while
// another thread synchronises the context.
int failing(std::string_view name);
int failing_in_context(std::string_view name);
int current_device();  // of a thread that has a context
// Work for a stream; a device whose work says false has met an illegal address. Returns a code.
int give(void* stream, std::function<bool()> work, std::function<bool()> until = {});
// Where the stream is being captured in a graph: keeps the work for that, and says so.
bool record(void* stream, const std::function<bool()>& work, const std::function<bool()>& until);
bool is_captured(void* stream);
// The code of a function that this thread must not call while a stream is captured; 0: it may.
int forbidden(std::string_view name);
// Makes a stream, and its handle.
void* add_stream(bool blocking, bool urgent);
// As functions do that allocate, free or load: lets no other thread into the driver until the
// device has done all that it has been given. Nothing, unless a test asks for it.
void synchronise_context();
// Memory::reachable() of the device's.
std::byte* reachable(Address address, std::size_t bytes, std::shared_ptr<void>& keep);

long launches();  // of kernels, so far
long copies_of_rows();
// Carries out a kernel, by its name, here and now, on host addresses.
void run_kernel(std::string_view name, const gradred_kernels::Arguments& call);

}  // namespace simulated
