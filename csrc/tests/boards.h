// A board of names in shared memory, for tests whose ranks are threads or forked processes.
#pragma once

#include <sys/mman.h>

#include <string_view>

#include "base/signature.h"
#include "named/board.h"
#include "node_ranks.h"

namespace gradred::testing {

namespace named = gradred;

// Memory that threads and forked processes share.
class Shared {
 public:
  explicit Shared(std::size_t bytes)
      : bytes_(bytes),
        data_(static_cast<std::byte*>(
            mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0))) {}
  ~Shared() { munmap(data_, bytes_); }
  Shared(const Shared&) = delete;
  Shared& operator=(const Shared&) = delete;
  std::byte* data() const { return data_; }

 private:
  const std::size_t bytes_;
  std::byte* const data_;
};

inline Submission sum_of(std::size_t count, int priority = 0) {
  Submission what;
  what.priority = priority;
  what.dtype = DType::kFloat32;
  what.axes = what.parts = 1;
  what.arrays = 1;
  what.shape[0] = static_cast<std::int64_t>(count);
  what.counts[0] = count;
  what.bytes = 4 * count;
  return what;
}

// The sum of one leaf of a tree of this structure.
inline Submission leaf_of(std::string_view structure) {
  Submission what = sum_of(1);
  what.structure = mix(1, structure);
  return what;
}

inline named::Board board_of(const Shared& memory, const BoardBootstrap& bootstrap,
                             std::uint64_t most_fused = 0) {
  return {memory.data(),
          static_cast<std::size_t>(bootstrap.size()),
          static_cast<std::size_t>(bootstrap.rank()),
          most_fused,
          RankNames(),
          nullptr};
}

}  // namespace gradred::testing
