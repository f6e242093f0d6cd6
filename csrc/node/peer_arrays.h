// Files of a peer's arrays (array_memory.h), mapped here to be read: what lies in them needs no
// call of the kernel's, which takes longer for each page than it takes to read the page.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "liveness/process.h"

namespace gradred {

// Where bytes of a process lie that its peers may map.
struct FilePlace {
  std::uint16_t fd = 0;      // of the process
  std::uint32_t serial = 0;  // of the file: no other of the process has had it; 0: nowhere

  explicit operator bool() const { return serial != 0; }
  bool operator==(const FilePlace&) const = default;
};

// What stands behind the arrays, on the last page of each such file.
inline constexpr std::size_t kFileNoteBytes = 64 << 10;  // the largest page there is
struct FileNote {
  std::uint64_t serial;
  const std::byte* data;  // where the process has mapped the file
  std::uint64_t bytes;    // in front of this note
  std::atomic<std::uint32_t> ended;
};

class PeerArrays {
 public:
  PeerArrays() = default;
  ~PeerArrays();
  PeerArrays(PeerArrays&&) = default;
  PeerArrays(const PeerArrays&) = delete;
  PeerArrays& operator=(const PeerArrays&) = delete;

  // Where this process can read what `peer` has at `address`; nullptr: not here. Maps the file when
  // it is first asked for, and forgets those that have ended.
  const std::byte* find(const ProcessId& peer, FilePlace place, const std::byte* address,
                        std::size_t bytes);

 private:
  struct Mapped {
    FilePlace place;
    const std::byte* here = nullptr;  // nullptr: it cannot be mapped
    const FileNote* note = nullptr;
  };

  static Mapped map(const ProcessId& peer, FilePlace place);
  static void populate(const Mapped& file, const std::byte* address, std::size_t bytes);
  void forget_ended();

  std::vector<Mapped> files_;
};

}  // namespace gradred
