// Arrays in device memory that the devices of peers read and write where they lie, beside the parts
// of a workspace, into which other arrays are copied.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace gradred {

// The place of an array that peers can reach, in one 64-bit word: the number of an allocation that
// its process exports, and the offset in it.
class SharedPlace {
 public:
  constexpr SharedPlace() = default;  // no place
  constexpr explicit SharedPlace(std::uint64_t word) : word_(word) {}
  constexpr SharedPlace(std::uint64_t allocation, std::uint64_t offset)
      : word_(allocation << kOffsetBits | offset) {}

  constexpr std::uint64_t word() const { return word_; }
  constexpr std::uint64_t allocation() const { return word_ >> kOffsetBits; }  // never 0
  constexpr std::uint64_t offset() const { return word_ & ((std::uint64_t{1} << kOffsetBits) - 1); }
  constexpr explicit operator bool() const { return word_ != 0; }
  // Numbers of allocations: first those of gradred, from kFirstOfPrograms on those of the program.
  static constexpr std::uint64_t kFirstOfPrograms = std::uint64_t{1} << 23, kEnd = 1 << 24;
  constexpr bool is_programs() const { return allocation() >= kFirstOfPrograms; }

 private:
  static constexpr int kOffsetBits = 40;  // more bytes than any device has
  std::uint64_t word_ = 0;
};

// What a peer needs to open this rank's memory.
using Ticket = std::array<std::byte, 160>;

// The arrays of this rank that peers reach, and those of peers that it has opened.
class SharedArrays {
 public:
  struct Array {
    const void* at = nullptr;
    std::size_t bytes = 0;  // 0: no such array
    bool operator==(const Array&) const = default;
  };
  struct Places {
    SharedPlace input{}, result{};
  };

  virtual ~SharedArrays() = default;
  // Returns the places of a call's arrays on this rank, if they lie in memory that can be exported.
  // Peers then reach them directly. Other arrays have no place and go through the part.
  virtual Places find(Array input, Array result) = 0;
  // Called within Workspace::attempt(), when nothing writes to the array any more.
  virtual Ticket ticket_of(SharedPlace place) = 0;
  // Called within Workspace::attempt(). Opens the allocation that holds a peer's place, when it is
  // needed for the first time. Blocks for some milliseconds. Throws DeviceError.
  virtual void open(std::size_t rank, SharedPlace place, const Ticket& ticket) = 0;
  // The address of a rank's array for this rank's device.
  virtual std::byte* address(std::size_t rank, SharedPlace place) = 0;
  // Allocations that peers have opened and the program has freed since. take_ended() returns some
  // that peers are to close now.
  virtual bool has_ended() = 0;
  virtual std::vector<std::uint64_t> take_ended(std::size_t most) = 0;
  virtual void close(std::size_t rank, std::uint64_t allocation) = 0;
  // Closes peers' allocations that their programs made and that no call uses any more.
  virtual void let_go_of_programs() noexcept = 0;

  // From now on exports only arrays that gradred has allocated.
  void keep_to_own() { exports_programs_ = false; }
  bool exports_programs() const { return exports_programs_ && takes_programs(); }
  // Records that all peers have opened the allocation of `place`.
  void set_known(SharedPlace place) { known_.insert(place.allocation()); }
  bool is_known(SharedPlace place) const { return known_.contains(place.allocation()); }
  // From now on no rank uses arrays directly.
  void refuse(std::string why) { why_none_ = std::move(why); }
  bool takes_any() const { return why_none_.empty(); }
  const std::string& why_none() const { return why_none_; }
  // As refuse(), for arrays that programs have allocated.
  void refuse_programs(std::string why) {
    if (!takes_programs()) return;
    why_no_programs_ = std::move(why);
    takes_programs_.store(false, std::memory_order_release);
  }
  bool takes_programs() const { return takes_programs_.load(std::memory_order_acquire); }
  const std::string& why_no_programs() const { return why_no_programs_; }
  bool takes(SharedPlace place) const {
    return takes_any() && (!place.is_programs() || takes_programs());
  }
  // Records that a call has used arrays directly. `programs`: this rank's arrays were allocated by
  // the program.
  void take(bool programs) { (programs ? programs_taken_ : taken_) = true; }
  bool taken() const { return taken_; }
  bool programs_taken() const { return programs_taken_; }

 protected:
  void forget(std::uint64_t allocation) { known_.erase(allocation); }

 private:
  std::set<std::uint64_t> known_;  // allocations of this rank
  std::string why_none_, why_no_programs_;
  // Read by other threads than the one that advances the call.
  std::atomic<bool> takes_programs_{true};
  bool exports_programs_ = true;
  std::atomic<bool> taken_{false}, programs_taken_{false};
};

}  // namespace gradred
