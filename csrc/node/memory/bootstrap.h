// Communication that the ranks of a node group use before they share memory.
#pragma once

#include <cstddef>

#include "base/rank_names.h"

namespace gradred {

// Collective calls over exactly the ranks of the group. They are used only while the group is
// created.
class Bootstrap {
 public:
  virtual ~Bootstrap() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  // Every rank passes `bytes` bytes in `mine`. `all` receives size() * bytes bytes in rank order.
  virtual void allgather(const void* mine, std::size_t bytes, void* all) = 0;
  virtual void barrier() = 0;
  virtual RankNames names() const { return {}; }  // local
};

}  // namespace gradred
