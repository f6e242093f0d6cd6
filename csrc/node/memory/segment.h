// A segment of memory that the ranks of one host share.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "node/memory/bootstrap.h"
#include "node/memory/memory_file.h"

namespace gradred {

// One mapping of an anonymous file. At first it has addresses and no memory. populate() allocates
// the memory, which is zero when new. Ranks that are threads of one process hold the same object.
class Segment {
 public:
  // The first page is allocated from the start and holds the proof.
  static constexpr std::size_t kProofBytes = 4096;

  // Collective. Rank 0 creates the file and the others map it. A random number at its start proves
  // that all see the same file. Either all ranks get the segment, or all get nullptr and the same
  // `reason`. The memory is freed when the last process unmaps it. The value of `bytes` at rank 0
  // applies.
  static std::shared_ptr<Segment> create(Bootstrap& bootstrap, std::size_t bytes,
                                         std::string& reason);

  Segment(int fd, std::size_t bytes);  // takes ownership of the descriptor
  ~Segment();
  Segment(const Segment&) = delete;  // the mapping has one owner
  Segment& operator=(const Segment&) = delete;

  std::byte* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }
  int fd() const { return file_.fd(); }
  std::uint64_t token() const;  // the random number
  // For whole pages: populate() allocates memory, release() returns it to the system when nothing
  // uses it any more. populate() throws TransportError if there is too little memory.
  void populate(std::size_t begin, std::size_t bytes) const;
  void release(std::size_t begin, std::size_t bytes) const noexcept;

 private:
  File file_;
  std::byte* data_;
  std::size_t bytes_;
};

}  // namespace gradred
