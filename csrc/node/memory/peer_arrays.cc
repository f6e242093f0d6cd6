#include "node/memory/peer_arrays.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <string>

#include "node/memory/memory_file.h"

namespace gradred {
namespace {

// A process may have 65,530 mappings, most of which belong to the program.
constexpr std::size_t kMost = 32;         // files of one peer
constexpr std::size_t kMostOfAll = 8192;  // files of all peers, in all groups
std::atomic<std::size_t> mapped_files = 0;

}  // namespace

// Returns an entry without mapping if the file does not exist or has been replaced.
PeerArrays::Mapped PeerArrays::map(const ProcessId& peer, FilePlace place) {
  const Mapped nothing{.place = place};
  if (mapped_files.load(std::memory_order_relaxed) >= kMostOfAll) return nothing;
  const std::string path = "/proc/" + std::to_string(peer.pid) + "/fd/" + std::to_string(place.fd);
  const File file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  struct stat status{};
  if (!file || fstat(file.fd(), &status) != 0 || !S_ISREG(status.st_mode)) return nothing;
  const auto bytes = static_cast<std::size_t>(status.st_size);
  if (bytes <= kFileNoteBytes) return nothing;
  std::byte* const here = try_to_map(file.fd(), bytes, PROT_READ);
  if (here == nullptr) return nothing;
  const auto* const note = reinterpret_cast<const FileNote*>(here + bytes - kFileNoteBytes);
  if (note->serial != place.serial || note->bytes + kFileNoteBytes != bytes) {
    munmap(here, bytes);
    return nothing;
  }
  madvise(here, bytes, MADV_DONTDUMP);  // core dumps of the peer contain it
  madvise(here, bytes, MADV_DONTFORK);  // so that no child keeps the memory allocated
  ++mapped_files;
  return {place, here, bytes, note->data, note, getpid()};
}

PeerArrays::~PeerArrays() {
  for (const Mapped& file : files_) forget(file);
}

// In a forked child, other memory may be mapped at this address.
void PeerArrays::forget(const Mapped& file) {
  if (file.here == nullptr || file.process != getpid()) return;
  munmap(file.here, file.bytes);
  --mapped_files;
}

// Maps the pages of the first access in one call, if the kernel can. One by one they take longer.
void PeerArrays::populate(const Mapped& file, const std::byte* address, std::size_t bytes) {
  constexpr int kPopulateRead = 22;  // MADV_POPULATE_READ; older headers lack it
  if (file.here == nullptr || !file.holds(address, bytes)) return;
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  const auto begin = static_cast<std::size_t>(address - file.data) / page * page;
  const auto end = static_cast<std::size_t>(address - file.data) + bytes;
  madvise(file.here + begin, end - begin, kPopulateRead);
}

void PeerArrays::forget_ended() {
  bool any = false;
  std::erase_if(files_, [&](const Mapped& file) {
    if (file.here == nullptr || file.note->ended.load(std::memory_order_relaxed) == 0) return false;
    any = true;
    forget(file);
    return true;
  });
  if (any) std::erase_if(files_, [](const Mapped& file) { return file.here == nullptr; });
}

const PeerArrays::Mapped& PeerArrays::add(const ProcessId& peer, FilePlace place) {
  forget_ended();
  if (files_.size() >= kMost) {
    forget(files_.front());
    files_.erase(files_.begin());
  }
  return files_.emplace_back(map(peer, place));
}

const std::byte* PeerArrays::find(const ProcessId& peer, FilePlace place, const std::byte* address,
                                  std::size_t bytes) {
  if (!place) return nullptr;
  const auto found = std::ranges::find(files_, place, &Mapped::place);
  if (found == files_.end()) {
    populate(add(peer, place), address, bytes);
  } else if (found + 1 != files_.end()) {
    std::rotate(found, found + 1, files_.end());
  }
  const Mapped& file = files_.back();
  return file.here != nullptr && file.holds(address, bytes) ? file.here + (address - file.data)
                                                            : nullptr;
}

}  // namespace gradred
