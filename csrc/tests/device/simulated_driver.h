// The part of the simulated driver that its other source files use.
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

constexpr int kCapability = 90;  // compute capability 9.0 of every device

// Each function calls this first, and returns the result at once if it is not kSuccess. It waits
// while another thread synchronises the context.
int failing(std::string_view name);
int failing_in_context(std::string_view name);
int current_device();  // of a thread that has a context
// Enqueues work in a stream. If the work returns false, the device has met an illegal address.
// Returns an error code.
int give(void* stream, std::function<bool()> work, std::function<bool()> until = {});
// If the stream is being captured in a graph, adds the work to the graph and returns true.
bool record(void* stream, const std::function<bool()>& work, const std::function<bool()>& until);
bool is_captured(void* stream);
// The error code of a function that must not be called while a stream is captured; 0: it may be.
int forbidden(std::string_view name);
// Makes a stream and returns its handle.
void* add_stream(bool blocking, bool urgent);
// Functions that allocate, free or load call this. If a test requests it, it blocks all other
// threads' calls to the driver until the device has completed all work. Otherwise it does nothing.
void synchronise_context();
// Memory::reachable() of the driver's memory.
std::byte* reachable(Address address, std::size_t bytes, std::shared_ptr<void>& keep);

long launches();  // number of kernels launched
long copies_of_rows();
// Runs a kernel immediately, by its name, on host addresses.
void run_kernel(std::string_view name, const gradred_kernels::Arguments& call);

}  // namespace simulated
