// Memory that the ranks of one host share.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "node/bootstrap.h"

namespace gradred {

// One mapping of shared memory, zero when new. Ranks that are threads of one process hold the same
// object.
class Segment {
 public:
  // Collective: rank 0 makes `bytes` bytes of real memory, the others map them, and all prove by a
  // random number at the start of the memory that they see the same. Either all ranks get it or all
  // get nullptr and the same `reason`. The memory has no name and is gone with the last process
  // that maps it. `bytes` counts at rank 0.
  static std::shared_ptr<Segment> create(Bootstrap& bootstrap, std::size_t bytes,
                                         std::string& reason);

  Segment(void* data, std::size_t bytes) : data_(static_cast<std::byte*>(data)), bytes_(bytes) {}
  ~Segment();
  Segment(const Segment&) = delete;  // the mapping has one owner
  Segment& operator=(const Segment&) = delete;

  std::byte* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }

 private:
  std::byte* data_;
  std::size_t bytes_;
};

}  // namespace gradred
