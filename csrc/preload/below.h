// The MPI functions below this library: those that the program would call without it. Tools that
// are loaded between the program and its MPI see these calls.
#pragma once

#include <atomic>

namespace gradred::preload {

// An address in the code that has called the function of this library in which this stands.
[[gnu::always_inline]] inline const void* caller() { return __builtin_return_address(0); }
// The function of this name that `caller`, an address in the program's code, would reach without
// this library. Returns nullptr if there is none.
void* find_below(const char* name, const void* caller);
// The MPI of that code, as a handle of dlopen: the library with the PMPI_Allreduce that it would
// reach. Returns nullptr if it has none.
void* library_below(const void* caller);
// Whether `address` lies in this library.
bool is_own(const void* address);
// Reports that the MPI lacks a function, and returns the code of an error.
int report_missing(const char* name);

template <class Signature>
class Below;

// One function, looked up at its first call.
template <class... Arguments>
class Below<int(Arguments...)> {
 public:
  using Function = int (*)(Arguments...);

  explicit constexpr Below(const char* name) : name_(name) {}
  bool exists(const void* caller) { return get(caller) != nullptr; }
  int operator()(const void* caller, Arguments... arguments) {
    const Function function = get(caller);
    return function != nullptr ? function(arguments...) : report_missing(name_);
  }
  Function get(const void* caller) {
    Function function = found_.load(std::memory_order_relaxed);
    if (function == nullptr) [[unlikely]] {
      function = reinterpret_cast<Function>(find_below(name_, caller));
      found_.store(function, std::memory_order_relaxed);
    }
    return function;
  }

 private:
  const char* const name_;
  std::atomic<Function> found_{nullptr};
};

}  // namespace gradred::preload
