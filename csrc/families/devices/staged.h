// Calls on arrays in device memory by plans that read host memory: the input is copied to host
// memory, the plan carries the call out there, and the result is copied back.
//
// This concerns this rank alone: its peers see only the plan, and may have their arrays elsewhere.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "calls/call.h"
#include "engine/on_copies.h"
#include "memory/memory.h"
#include "memory/workspace.h"

namespace gradred {

// The host memory of one such call, and its copies. They are whole copies, or, if the plan takes
// data in pieces (ArrayAccess::kPieces), copies piece by piece beside the call itself.
class Staging final : public Flow {
 public:
  // Begins to copy the input. The caller keeps what the call points to alive as long as this
  // object. With a workspace the call is carried out in device memory, unless to_host() is called.
  Staging(const Call& call, int rank, int size, bool flows, Workspace* workspace = nullptr);
  // An exception may have ended a call early: host memory that is still being copied stays
  // allocated.
  ~Staging() override;
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;
  // Whether the call is long enough for pieces to be worth their cost.
  static bool is_long(const Call& call);
  // The bytes of host memory that the call takes. A StreamOrder is opened with them.
  static std::array<std::size_t, 2> host_bytes(const Call& call, int rank, int size);

  // The same call on host memory. Its `before` is the stream that copies the input, which is the
  // caller's if there is one.
  const Call& on_host() const { return on_host_; }
  bool input_is_there() { return input_stream().ready(); }
  bool has_input(std::size_t end) override;
  void has_result(std::size_t end) override;
  DeviceCall* device() override { return device_ ? &*device_ : nullptr; }
  void to_host(const void*& send, void*& recv) override;
  void copy_result();  // begins to copy what has not been copied
  bool result_is_there() { return has_rest() ? device_->rest->is_over() : result_stream().ready(); }
  // Whether the device was given all work of the call, for which streams can wait.
  bool is_given() const {
    const EndEvent* const given = call_.order != nullptr ? call_.order->given.get() : nullptr;
    return given != nullptr && given->is_set();
  }
  void give_up(const std::exception_ptr& reason) noexcept;  // called before abandon()
  // Gives up. `host_memory_is_free`: no plan reads or writes the host memory any more. Returns
  // false if the device may still use the caller's memory. Memory that may still be used stays
  // allocated.
  bool abandon(bool host_memory_is_free) noexcept;
  void rest() noexcept;  // called when the call has ended

 private:
  Staging(const Call& call, int rank, int size);
  HostAllocation host_memory(DeviceMemory& device, std::size_t bytes) const;
  bool has_scaled_input();
  bool has_rest() const { return device_ && device_->rest != nullptr; }
  bool is_quiet() noexcept;
  void keep_host_memory() noexcept;
  Stream& input_stream() { return *before_; }
  Stream& result_stream() { return result_ ? *result_ : input_stream(); }
  void to_host(bool flows);
  void copy_input(std::byte* target, const std::byte* source, std::size_t bytes, bool flows);

  const Call call_;
  const int rank_, size_;
  const std::size_t piece_;  // bytes of one copy, if data go in pieces
  Call on_host_;
  std::optional<DeviceCall> device_;
  std::shared_ptr<Stream> before_;    // copies the input
  std::optional<Stream> result_;      // copies the result, if before_ does not
  HostAllocation room_, input_;       // for the result, and for an input that has no place in it
  std::vector<std::uint64_t> marks_;  // behind each piece of the input, if data go in pieces
  std::size_t result_bytes_ = 0, copied_ = 0;
  bool scales_ = false;  // applies the factor on the host, once the input is there
};

class StagedOperation final : public OperationOnCopies {
 public:
  using Make = std::function<std::shared_ptr<StartedOperation>(const Call&)>;

  // `make` makes the operation on host memory. From then on this has its place among other
  // operations.
  StagedOperation(const Call& call, int rank, int size, bool flows, Workspace* workspace,
                  const Make& make);
  // For a make() that reads the input at once: blocks until the input is there.
  struct ReadsAtOnce {};
  StagedOperation(const Call& call, int rank, int size, const Make& make, ReadsAtOnce);

  std::string waits_for() const override;
  bool must_end() const override { return inner_->must_end() || staging_->is_given(); }
  bool is_left() const override { return is_left_; }
  bool is_copied_to_host() const override { return staging_->device() == nullptr; }
  bool holds_memory() const override { return holds_memory_; }

 protected:
  bool step() override;
  void give_up(const std::exception_ptr& reason) noexcept override;
  void withdraw() noexcept override;
  void on_end(bool well) noexcept override;

 private:
  const std::shared_ptr<Staging> staging_;  // shared with inner_
  const bool is_left_;                      // streams wait for it, and no thread does
  bool copies_result_ = false;
  bool holds_memory_ = false;
};

}  // namespace gradred
