// Read-only mappings of the files that hold peers' arrays (array_memory.h). A mapped array needs no
// kernel call to be read. Such a call takes longer per page than reading the page.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "liveness/process.h"

namespace gradred {

// Where bytes of a process lie, if peers can map them.
struct FilePlace {
  std::uint16_t fd = 0;      // descriptor in that process
  std::uint32_t serial = 0;  // number of the file, never reused in its process; 0: none

  explicit operator bool() const { return serial != 0; }
  bool operator==(const FilePlace&) const = default;
};

// A note at the end of each such file, behind the arrays.
inline constexpr std::size_t kFileNoteBytes = 64 << 10;  // the largest page size of any system
struct FileNote {
  std::uint64_t serial;
  const std::byte* data;  // where the owning process has mapped the file
  std::uint64_t bytes;    // bytes of arrays in front of this note
  std::atomic<std::uint32_t> ended;
};

class PeerArrays {
 public:
  PeerArrays() = default;
  ~PeerArrays();
  PeerArrays(PeerArrays&&) = default;
  PeerArrays(const PeerArrays&) = delete;
  PeerArrays& operator=(const PeerArrays&) = delete;

  // Returns where this process can read what `peer` has at `address`, or nullptr if it cannot. Maps
  // a file when it is first needed. Unmaps files whose owner has freed them and, if there are too
  // many, the least recently used ones.
  const std::byte* find(const ProcessId& peer, FilePlace place, const std::byte* address,
                        std::size_t bytes);

 private:
  // The content of the note when the file was mapped. A program may later write past the end of an
  // array and damage the note.
  struct Mapped {
    FilePlace place;
    std::byte* here = nullptr;  // nullptr: the file cannot be mapped
    std::size_t bytes = 0;      // length of the mapping
    const std::byte* data = nullptr;
    const FileNote* note = nullptr;
    pid_t process = 0;  // process that mapped it; a forked child has no such mapping

    bool holds(const std::byte* address, std::size_t length) const {
      return address >= data && address + length <= data + bytes - kFileNoteBytes;
    }
  };

  const Mapped& add(const ProcessId& peer, FilePlace place);
  static Mapped map(const ProcessId& peer, FilePlace place);
  static void populate(const Mapped& file, const std::byte* address, std::size_t bytes);
  void forget_ended();
  static void forget(const Mapped& file);

  std::vector<Mapped> files_;  // from the least to the most recently used
};

}  // namespace gradred
