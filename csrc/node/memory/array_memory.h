// Memory for the user's arrays, in anonymous files.
//
// A child made by fork() shares this memory without a copy, however much the parent writes
// afterwards. Private memory would need a second copy of each page that the parent writes. The
// parent never sees what the child writes. The child may see what the parent writes after the fork,
// in pages that the child has not written.
//
// Peers on the same host may map the files to read the arrays directly (peer_arrays.h).
#pragma once

#include <cstddef>
#include <memory>

#include "node/memory/peer_arrays.h"

namespace gradred {

class Slab;

class ArrayMemory {
 public:
  // Allocates `bytes` bytes of zeroed, resident memory that begin at the start of a page. Throws
  // TransportError if the system refuses memory, addresses or descriptors.
  explicit ArrayMemory(std::size_t bytes);
  ~ArrayMemory();
  ArrayMemory(const ArrayMemory&) = delete;
  ArrayMemory& operator=(const ArrayMemory&) = delete;

  std::byte* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }

 private:
  void release() noexcept;

  std::shared_ptr<Slab> slab_;
  std::byte* data_ = nullptr;
  std::size_t bytes_;
};

// Returns where peers find these bytes of this process. Returns an empty place unless all bytes lie
// in one file.
FilePlace file_place(const void* data, std::size_t bytes);

// Bytes of this process in a file, for peers that map them themselves.
struct FilePart {
  FilePlace place;
  std::size_t offset = 0;  // of the first byte in the file
  std::size_t arrays = 0;  // bytes of arrays in the file; the FileNote follows them
};
// The same, with where in the file they lie.
FilePart file_part(const void* data, std::size_t bytes);

}  // namespace gradred
