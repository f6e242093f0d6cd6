// Memory for the user's arrays, in files that have no name.
//
// A child that fork() makes shares it without a copy, and goes on to do so however much the parent
// writes: with private memory each page that the parent writes would be there twice. What the child
// writes is its own: the parent never sees it. What the parent writes after the fork may show in
// pages that the child has not written.
//
// Peers of the same host may map the files, to read arrays where they lie (peer_arrays.h).
#pragma once

#include <cstddef>
#include <memory>

#include "node/peer_arrays.h"

namespace gradred {

class Slab;

class ArrayMemory {
 public:
  // `bytes` zero bytes of real memory that begin at the start of a page. Throws TransportError
  // where memory, addresses or descriptors are refused.
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

// Where these bytes of this process lie for its peers; nowhere, unless all are of one file.
FilePlace file_place(const void* data, std::size_t bytes);

}  // namespace gradred
