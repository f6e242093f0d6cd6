#include "node/peer_arrays.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <string>

#include "node/memory_file.h"

namespace gradred {
namespace {

std::size_t mapped_bytes(const FileNote& note) { return note.bytes + kFileNoteBytes; }

bool holds(const FileNote& note, const std::byte* address, std::size_t bytes) {
  return address >= note.data && address + bytes <= note.data + note.bytes;
}

}  // namespace

// Nothing where there is no such file, or another one by now.
PeerArrays::Mapped PeerArrays::map(const ProcessId& peer, FilePlace place) {
  const Mapped nothing{place, nullptr, nullptr};
  const std::string path = "/proc/" + std::to_string(peer.pid) + "/fd/" + std::to_string(place.fd);
  const File file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  struct stat status{};
  if (!file || fstat(file.fd(), &status) != 0 || !S_ISREG(status.st_mode)) return nothing;
  const auto bytes = static_cast<std::size_t>(status.st_size);
  if (bytes <= kFileNoteBytes) return nothing;
  std::byte* const here = try_to_map(file.fd(), bytes, PROT_READ);
  if (here == nullptr) return nothing;
  const auto* const note = reinterpret_cast<const FileNote*>(here + bytes - kFileNoteBytes);
  if (note->serial == place.serial && mapped_bytes(*note) == bytes) return {place, here, note};
  munmap(here, bytes);
  return nothing;
}

PeerArrays::~PeerArrays() {
  for (const Mapped& file : files_) {
    if (file.here != nullptr) munmap(const_cast<std::byte*>(file.here), mapped_bytes(*file.note));
  }
}

// The pages of what is wanted first at once, where the kernel can: one by one they take longer.
void PeerArrays::populate(const Mapped& file, const std::byte* address, std::size_t bytes) {
  constexpr int kPopulateRead = 22;  // MADV_POPULATE_READ, which older headers lack
  if (!holds(*file.note, address, bytes)) return;
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  const auto begin = static_cast<std::size_t>(address - file.note->data) / page * page;
  const auto end = static_cast<std::size_t>(address - file.note->data) + bytes;
  madvise(const_cast<std::byte*>(file.here) + begin, end - begin, kPopulateRead);
}

void PeerArrays::forget_ended() {
  std::erase_if(files_, [](const Mapped& file) {
    if (file.here == nullptr) return true;  // perhaps it can, now
    if (file.note->ended.load(std::memory_order_relaxed) == 0) return false;
    munmap(const_cast<std::byte*>(file.here), mapped_bytes(*file.note));
    return true;
  });
}

const std::byte* PeerArrays::find(const ProcessId& peer, FilePlace place, const std::byte* address,
                                  std::size_t bytes) {
  if (!place) return nullptr;
  const Mapped* found = nullptr;
  for (const Mapped& file : files_) {
    if (file.place == place) found = &file;
  }
  if (found == nullptr) {
    forget_ended();
    found = &files_.emplace_back(map(peer, place));
    if (found->here != nullptr) populate(*found, address, bytes);
  }
  if (found->here == nullptr) return nullptr;
  const FileNote& note = *found->note;
  return holds(note, address, bytes) ? found->here + (address - note.data) : nullptr;
}

}  // namespace gradred
