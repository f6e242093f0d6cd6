// Memory that processes of one host share. Every node group over some of these processes gets a
// part of it.
//
//   the proof | region of process 0 | region of process 1 | ...
//
// Sharing memory takes a file, a mapping of it in each process, and a proof that all processes see
// the same file. This is done once for a set of processes, with addresses for many groups. Memory
// is allocated behind the addresses when a group needs it. Rank 0 of a group takes the group's part
// from the region of its own process; no other process allocates from that region. So the processes
// share no lock, which a killed process could hold forever.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/rank_names.h"
#include "liveness/process.h"
#include "node/bootstrap.h"
#include "node/cores.h"
#include "node/segment.h"

namespace gradred {

struct PoolMember {
  ProcessId process;
  Cores cores;  // when the pool was created
};

// Memory of one group, recorded in the process of the group's rank 0. It begins with a
// std::uint32_t that counts the ranks that still use it. When the last rank has left, the count is
// 0 and another group may take the part.
struct PoolPart {
  // How much of the part is allocated: nothing, the first bytes of slots and chunks (layout.h), or
  // all.
  enum class Real : std::uint8_t { kNothing, kBeginnings, kAll };
  // kHeld: in use, whatever the count says. kCounted: in use until the count is 0.
  enum class Use : std::uint8_t { kFree, kHeld, kCounted };

  std::size_t begin, bytes;
  Real real = Real::kNothing;
  Use use = Use::kFree;
};

class Pool {
 public:
  // Collective. `part_bytes`: size of a group of all these processes; the value of rank 0 applies.
  // Either all ranks get a pool, or all get nullptr and the same `reason`. The caller must call
  // introduce() next.
  static std::shared_ptr<Pool> create(Bootstrap& bootstrap, std::size_t part_bytes,
                                      std::string& reason);
  void introduce(std::vector<PoolMember> members);

  // The number that proves that all processes see this pool: the same in all of them.
  std::uint64_t token() const { return segment_->token(); }
  std::byte* at(std::size_t offset) const { return segment_->data() + offset; }
  const PoolMember& member(std::size_t index) const { return members_[index]; }
  // Returns the indices of these processes in the pool, or nothing if one of them is not a member.
  std::optional<std::vector<std::size_t>> find(std::span<const int> world_ranks) const;
  // Whether this process is still the one it introduced, with the same cores.
  bool knows_this_process() const;

  // Takes a part of this process's region, in state kHeld. Returns nullptr if no addresses are
  // left.
  PoolPart* take(std::size_t bytes);
  // Throws TransportError if there is too little memory.
  void populate(const PoolPart& part, std::size_t begin, std::size_t bytes) const {
    segment_->populate(part.begin + begin, bytes);
  }
  void hand_over(PoolPart& part);  // to the ranks that its count stands for
  void free(PoolPart& part);       // a part that no peer knows
  PoolPart* part_at(std::size_t begin);
  // Returns memory of unused parts to the system, except for a few MiB.
  void trim();

 private:
  Pool(std::shared_ptr<Segment> segment, std::size_t self, std::size_t size, RankNames names);

  bool is_free(PoolPart& part) const;

  const std::shared_ptr<Segment> segment_;
  const std::size_t self_;
  const RankNames names_;
  std::vector<PoolMember> members_;
  std::size_t begin_, end_;  // of this process's region
  std::size_t next_;         // first address that no part has used yet
  std::mutex mutex_;
  std::list<PoolPart> parts_;
};

}  // namespace gradred
