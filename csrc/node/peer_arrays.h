// Files of a peer's arrays (array_memory.h), mapped here to be read: what lies in them needs no
// call of the kernel's, which takes longer for each page than it takes to read the page.
#pragma once

#include <sys/types.h>

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
  // it is first asked for, and forgets those that have ended, and of many those not used for
  // longest.
  const std::byte* find(const ProcessId& peer, FilePlace place, const std::byte* address,
                        std::size_t bytes);

 private:
  // What the note said when it was mapped: a program may write over the end of an array.
  struct Mapped {
    FilePlace place;
    std::byte* here = nullptr;  // nullptr: it cannot be mapped
    std::size_t bytes = 0;      // of the mapping
    const std::byte* data = nullptr;
    const FileNote* note = nullptr;
    pid_t process = 0;  // this one: a forked child has no such mapping

    bool holds(const std::byte* address, std::size_t length) const {
      return address >= data && address + length <= data + bytes - kFileNoteBytes;
    }
  };

  const Mapped& add(const ProcessId& peer, FilePlace place);
  static Mapped map(const ProcessId& peer, FilePlace place);
  static void populate(const Mapped& file, const std::byte* address, std::size_t bytes);
  void forget_ended();
  static void forget(const Mapped& file);

  std::vector<Mapped> files_;  // the last one was used last
};

}  // namespace gradred
