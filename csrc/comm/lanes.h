// The lanes of a communicator. A lane is a communicator of the same ranks for one persistent call,
// so that each rank starts its persistent calls in an order of its own. When all ranks have let a
// lane go, a later call takes it.
//
// All ranks keep the same account: lanes are made and taken by calls that all ranks make, and each
// of these calls begins with a report of every rank on lanes that it has let go meanwhile.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "calls/owner.h"

namespace gradred {

// What a lane can carry.
struct LaneShape {
  // Over what its calls go: shared memory alone, also messages, or collective calls of the MPI.
  enum class Way : std::uint8_t { kMemory, kMessages, kMpi };

  static constexpr std::size_t kAny = ~std::size_t{0};

  Way way = Way::kMemory;
  std::size_t at_most = kAny;  // bytes of the call

  // For calls of so many bytes in host memory: a power of two.
  static std::size_t class_of(std::size_t bytes);
  auto operator<=>(const LaneShape&) const = default;
};

class CommLanes {
 public:
  // Of one rank. More lanes than fit are reported by later calls.
  struct Report {
    static constexpr std::size_t kMost = 8;
    static constexpr std::uint32_t kFailed = 1U << 31;

    std::array<std::uint32_t, kMost> let_go{};  // their numbers, from 1 on; 0: none
  };
  struct Functions {
    void (*destroy)(Owner*);  // may be called by any thread that lets go of a lane
    bool (*has_failed)(Owner&);
  };

  explicit CommLanes(Functions functions) : kept_(std::make_shared<Kept>(functions)) {}
  // Lanes that are in use live on until they are let go.
  ~CommLanes();
  CommLanes(const CommLanes&) = delete;
  CommLanes& operator=(const CommLanes&) = delete;

  // In this order, with the same results on all ranks.
  Report report();                                       // local
  void receive(std::span<const Report> all);             // by rank
  std::shared_ptr<Owner> take(const LaneShape& wanted);  // nullptr: none is free
  std::shared_ptr<Owner> add(const LaneShape& shape, std::unique_ptr<Owner> made);

  // The lanes that this rank has let go, which its peers may still use. They live until a later
  // receive() or take().
  std::vector<Owner*> let_go() const;

 private:
  // What the last users of lanes return, whichever threads they are.
  struct Kept {
    explicit Kept(Functions functions) : of(functions) {}
    void put(std::uint32_t number, Owner* lane);
    // The lane, which this rank has let go.
    Owner* get(std::uint32_t number);

    const Functions of;
    std::mutex mutex;
    bool closed = false;  // the program's communicator has ended
    std::map<std::uint32_t, Owner*> lanes;
    std::deque<std::uint32_t> unreported;
  };
  struct Entry {
    LaneShape shape;
    std::size_t let_go_by = 0;  // ranks
    bool failed = false;        // on one of them
  };

  std::shared_ptr<Owner> lend(std::uint32_t number, Owner* lane);

  const std::shared_ptr<Kept> kept_;
  std::uint32_t made_ = 0;
  std::map<std::uint32_t, Entry> entries_;              // by number
  std::set<std::pair<LaneShape, std::uint32_t>> free_;  // on all ranks
};

}  // namespace gradred
