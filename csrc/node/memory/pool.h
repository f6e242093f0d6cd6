// Memory that processes of one host share. Every node group over some of these processes gets a
// part of it.
//
//   the proof | region of process 0 | region of process 1 | ...
//
// Sharing memory takes a file, a mapping of it in each process, and a proof that all processes see
// the same file. This is done once for a set of processes, with addresses for many groups. Memory
// is allocated behind the addresses when a group needs it. A group's part has lines, which lie
// close to those of other groups at the beginning of a region, and rooms, which begin at a huge
// page and fill the region from its end (layout.h). Rank 0 of a group takes the group's part from
// the region of its own process; no other process allocates from that region. So the processes
// share no lock, which a killed process could hold forever.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/rank_names.h"
#include "liveness/process.h"
#include "node/memory/bootstrap.h"
#include "node/memory/cores.h"
#include "node/memory/memory_nodes.h"
#include "node/memory/segment.h"

namespace gradred {

struct PoolMember {
  ProcessId process;
  Cores cores;                    // when the pool was created
  std::uint32_t cache_group = 0;  // cache_groups.h
};

// Memory of one group, recorded in the process of the group's rank 0. Its lines begin with a
// std::uint32_t that counts the ranks that still use it. When the last rank has left, the count is
// 0 and another group may take the part.
struct PoolPart {
  // How much of the part is allocated: nothing, the lines, also the first bytes of slots, also
  // those of chunks (layout.h), or all.
  enum class Real : std::uint8_t { kNothing, kLines, kSlots, kBeginnings, kAll };
  // kHeld: in use, whatever the count says. kCounted: in use until the count is 0.
  enum class Use : std::uint8_t { kFree, kHeld, kCounted };

  std::size_t lines, line_bytes, rooms, room_bytes;
  std::size_t slot_bytes;  // with the bytes of the rooms, these tell layouts apart
  std::vector<const MemoryNode*> memory_nodes{};  // near each rank; empty: the host has one only
  bool is_placed = true;                          // the kernel takes pages from these nodes
  Real real = Real::kNothing;
  Use use = Use::kFree;
  std::size_t held_bytes = 0;  // that are allocated
};

class Pool {
 public:
  // Collective. The bytes are those of a group of all these processes; the values of rank 0 apply.
  // Either all ranks get a pool, or all get nullptr and the same `reason`. The caller must call
  // introduce() next.
  static std::shared_ptr<Pool> create(Bootstrap& bootstrap, std::size_t line_bytes,
                                      std::size_t room_bytes, std::string& reason);
  void introduce(std::vector<PoolMember> members);
  void divide(std::span<const std::uint32_t> cache_groups);  // before any thread reads members

  // The number that proves that all processes see this pool: the same in all of them.
  std::uint64_t token() const { return segment_->token(); }
  std::byte* at(std::size_t offset) const { return segment_->data() + offset; }
  const PoolMember& member(std::size_t index) const { return members_[index]; }
  // Returns the indices of these processes in the pool, or nothing if one of them is not a member.
  std::optional<std::vector<std::size_t>> find(std::span<const int> world_ranks) const;
  // The memory node near each of these members; empty if the host has one node only.
  std::vector<const MemoryNode*> memory_nodes_of(std::span<const std::size_t> members) const;
  // Whether this process is still the one it introduced, with the same cores.
  bool knows_this_process() const;

  // Takes a part of this process's region, in state kHeld. Returns nullptr if no addresses are
  // left.
  PoolPart* take(std::size_t line_bytes, std::size_t room_bytes, std::size_t slot_bytes);
  // Throws TransportError if there is too little memory. The first function is for the process of
  // the part's rank 0, and notes that the part is `real` now.
  void populate(PoolPart& part, PoolPart::Real real, std::size_t begin, std::size_t bytes);
  void populate(std::size_t begin, std::size_t bytes) const { segment_->populate(begin, bytes); }
  // Whether few enough bytes of this process's parts belong to those that are allocated as a whole.
  // That limits the memory that communicators take together.
  bool may_make_whole() const;
  void hand_over(PoolPart& part);  // to the ranks that its count stands for
  void free(PoolPart& part);       // a part that no peer knows
  PoolPart* part_with(std::size_t lines);
  // Returns memory of unused parts to the system, except for a few MiB. Looks at a few parts in
  // each call, as there may be thousands.
  void trim();

 private:
  struct Size {
    std::size_t lines, rooms, slots;
    bool operator==(const Size&) const = default;
  };
  static Size size_of(const PoolPart& part) {
    return {part.line_bytes, part.room_bytes, part.slot_bytes};
  }

  Pool(std::shared_ptr<Segment> segment, std::size_t room_bytes, const Bootstrap& bootstrap);

  // Where the rooms of the next part begin; nothing if there are too few addresses.
  std::optional<std::size_t> next_rooms(Size size) const;
  PoolPart* find_free(Size size, std::size_t looks);
  bool is_free(PoolPart& part);
  void release(PoolPart& part);

  const std::shared_ptr<Segment> segment_;
  const std::size_t self_;
  const RankNames names_;
  const std::size_t most_whole_bytes_;
  std::vector<PoolMember> members_;
  std::size_t begin_, end_;              // of this process's region
  std::size_t lines_end_, rooms_begin_;  // between them no part has used the addresses yet
  mutable std::mutex mutex_;
  std::deque<PoolPart> parts_;
  std::size_t looked_ = 0, trimmed_ = 0;  // where find_free() and trim() look next
  std::size_t idle_bytes_ = 0;            // allocated for unused parts, as far as is known
  std::size_t whole_bytes_ = 0;
};

}  // namespace gradred
