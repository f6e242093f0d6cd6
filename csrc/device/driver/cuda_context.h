// A context of the CUDA driver, and the device to which it belongs.
#pragma once

#include <cstdint>
#include <string>

#include "device/driver/owners.h"

namespace gradred::device {

class CudaContext {
 public:
  CudaContext(const Driver& driver, ContextHandle context, Ordinal device);
  CudaContext(const CudaContext&) = delete;
  CudaContext& operator=(const CudaContext&) = delete;

  const Driver& driver() const { return driver_; }
  Ordinal ordinal() const { return device_; }
  const std::string& name() const { return name_; }
  const Uuid& uuid() const { return uuid_; }
  std::uint64_t id() const { return id_; }  // unique among all objects of all processes

  // Makes this context current as long as the result lives.
  ScopedContext scope() const { return {driver_, context_}; }
  // For destructors: calls work() in this context. Returns false if the context has ended, and with
  // it everything that was made in it.
  template <class Work>
  bool if_alive(Work&& work) const noexcept {
    try {
      const ScopedContext scope = this->scope();
      work();
      return true;
    } catch (const DriverError& error) {
      driver_.complain_of_context(error.code());
      return false;
    }
  }
  // Whether the stream's work is only recorded in a CUDA graph. This context must be current, as
  // for the next one.
  bool is_captured(std::uint64_t stream) const;
  // Throws UsageError if it is.
  void require_live(std::uint64_t stream) const;

 private:
  const Driver& driver_;
  const ContextHandle context_;
  const Ordinal device_;
  const std::uint64_t id_;
  const std::string name_;
  Uuid uuid_{};
};

}  // namespace gradred::device
