// Puts long arrays into huge pages. The kernel needs some time for each page of a peer's memory
// that it reads, and longer if a program has meanwhile displaced what it knows of the page.
#pragma once

#include <cstddef>
#include <vector>

namespace gradred {

class HugePages {
 public:
  // Called for each operation on an array that peers read. From its third operation on an array
  // is put into huge pages, a slice in each operation: the whole pages between its first and its
  // last byte, so that no memory beside it is touched. Of these, only pages that are full already:
  // the process never has more memory than before. Does nothing if the kernel cannot, or its
  // administrator or the program forbids huge pages.
  void use(const std::byte* array, std::size_t bytes);

 private:
  struct Seen {
    const std::byte* array = nullptr;
    std::size_t bytes = 0;
    unsigned operations = 0;
  };
  static constexpr std::size_t kRemembered = 64;
  void remember(const Seen& seen);

  std::vector<Seen> seen_;  // up to kRemembered
  std::size_t next_ = 0;    // the entry that the next unknown array replaces
};

}  // namespace gradred
