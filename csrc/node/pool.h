// Memory that processes of one host share, of which every node group over some of them gets a part.
//
//   the proof | region of process 0 | region of process 1 | ...
//
// To share memory takes a file, a mapping of it in each process, and a proof that all see the same.
// That is done once for a set of processes, with addresses for many groups; memory is put behind
// them when a group needs it. The process that leads a group, its rank 0, takes the group's part
// from its own region, and nobody else takes any there. So processes share no lock, which one that
// is killed could hold for ever.
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
  Cores cores;  // as they were when the pool was made
};

// Memory of one group, known to its leader. It begins with a std::uint32_t that counts the ranks
// which still use it: the last one to leave stores 0, and from then on the part is another group's.
struct PoolPart {
  // How much of it is memory. A group begins with the beginnings of its slots and chunks.
  enum class Real : std::uint8_t { kNothing, kBeginnings, kAll };
  // kHeld: nobody else may have it, whatever it counts.
  enum class Use : std::uint8_t { kFree, kHeld, kCounted };

  std::size_t begin, bytes;
  Real real = Real::kNothing;
  Use use = Use::kFree;
};

class Pool {
 public:
  // Collective. `part_bytes`: of a group of all these processes; counts at rank 0. Either all ranks
  // get a pool or all get nullptr and the same `reason`. introduce() has to follow.
  static std::shared_ptr<Pool> create(Bootstrap& bootstrap, std::size_t part_bytes,
                                      std::string& reason);
  void introduce(std::vector<PoolMember> members);

  std::uint64_t token() const { return segment_->token(); }  // the same in all its processes
  std::byte* at(std::size_t offset) const { return segment_->data() + offset; }
  const PoolMember& member(std::size_t index) const { return members_[index]; }
  // The numbers of these processes in the pool; nothing where one is none of its members.
  std::optional<std::vector<std::size_t>> find(std::span<const int> world_ranks) const;
  // Whether this process is still what it said of itself, its cores included.
  bool knows_this_process() const;

  // Of this process's region; null where no addresses are left. It is held.
  PoolPart* take(std::size_t bytes);
  // Throws TransportError where there is too little memory.
  void populate(const PoolPart& part, std::size_t begin, std::size_t bytes) const {
    segment_->populate(part.begin + begin, bytes);
  }
  void hand_over(PoolPart& part);  // to the ranks that it counts
  void free(PoolPart& part);       // of which no peer knows
  PoolPart* part_at(std::size_t begin);
  // Gives memory of parts that nobody uses back to the system, but for a little.
  void trim();

 private:
  Pool(std::shared_ptr<Segment> segment, std::size_t self, std::size_t size, RankNames names);

  bool is_free(PoolPart& part) const;

  const std::shared_ptr<Segment> segment_;
  const std::size_t self_;
  const RankNames names_;
  std::vector<PoolMember> members_;
  std::size_t begin_, end_;  // of this process's region
  std::size_t next_;         // addresses that no part has had yet
  std::mutex mutex_;
  std::list<PoolPart> parts_;
};

}  // namespace gradred
