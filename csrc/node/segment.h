// Memory that the ranks of one host share.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "node/bootstrap.h"
#include "node/memory_file.h"

namespace gradred {

// One mapping of a file without a name: addresses, of which populate() makes memory, zero when new.
// Ranks that are threads of one process hold the same object.
class Segment {
 public:
  // The first page is memory from the beginning, and holds the proof.
  static constexpr std::size_t kProofBytes = 4096;

  // Collective: rank 0 makes the file, the others map it, and all prove by a random number at its
  // start that they see the same. Either all ranks get it or all get nullptr and the same `reason`.
  // It is gone with the last process that maps it. `bytes` counts at rank 0.
  static std::shared_ptr<Segment> create(Bootstrap& bootstrap, std::size_t bytes,
                                         std::string& reason);

  Segment(int fd, std::size_t bytes);  // owns the descriptor
  ~Segment();
  Segment(const Segment&) = delete;  // the mapping has one owner
  Segment& operator=(const Segment&) = delete;

  std::byte* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }
  int fd() const { return file_.fd(); }
  std::uint64_t token() const;  // the random number
  // Whole pages: makes them memory, or gives the memory back, which nobody may use then.
  // populate() throws TransportError where there is too little.
  void populate(std::size_t begin, std::size_t bytes) const;
  void release(std::size_t begin, std::size_t bytes) const noexcept;

 private:
  File file_;
  std::byte* data_;
  std::size_t bytes_;
};

}  // namespace gradred
