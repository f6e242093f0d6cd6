#include "simulated_memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <utility>
#include <vector>

namespace simulated {
namespace {

constexpr int kGarbage = 0x5a;

std::byte* map_or_abort(Address at, std::size_t bytes, int protection, int flags, int file,
                        std::size_t offset = 0) {
  void* const hint = reinterpret_cast<void*>(at);
  void* const found = mmap(hint, bytes, protection, flags, file, static_cast<off_t>(offset));
  if (found == MAP_FAILED) std::abort();
  return static_cast<std::byte*>(found);
}

Address reserve_region(std::size_t bytes) {
  constexpr int kFlags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  return reinterpret_cast<Address>(map_or_abort(0, bytes, PROT_NONE, kFlags, -1));
}

}  // namespace

Pages::Pages(std::size_t bytes) : Pages(memfd_create("simulated device", MFD_CLOEXEC), bytes) {
  std::memset(own_, kGarbage, bytes_);
}
Pages::Pages(int file, std::size_t bytes) : file_(file), bytes_(bytes) {
  if (file_ < 0 || ftruncate(file_, static_cast<off_t>(bytes)) != 0) std::abort();
  own_ = map_or_abort(0, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file_);
}
Pages::~Pages() {
  munmap(own_, bytes_);
  close(file_);
}

Memory::Memory() : begin_(reserve_region(kRegion)) {}

// Finds the lowest free address range.
Address Memory::take(std::size_t bytes) {
  Address at = begin_;
  for (const auto& [begin, size] : taken_) {
    if (begin - at >= bytes) break;
    at = begin + size;
  }
  taken_[at] = bytes;
  return at;
}

// Maps what the host sees at the addresses: the pages of managed memory, or no access.
void Memory::show(const Piece& piece) const {
  const int protection = piece.kind == Kind::kManaged ? PROT_READ | PROT_WRITE : PROT_NONE;
  map_or_abort(piece.begin, piece.bytes, protection, MAP_SHARED | MAP_FIXED, piece.pages->file(),
               piece.offset);
}
void Memory::hide(Address address, std::size_t bytes) const {
  constexpr int kFlags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED;
  map_or_abort(address, bytes, PROT_NONE, kFlags, -1);
}

std::optional<Piece> Memory::add(Piece piece) {
  piece.id = ++ids_;
  show(piece);
  pieces_[piece.begin] = piece;
  return piece;
}

std::optional<Piece> Memory::allocate(Kind kind, std::size_t bytes, int device, void* context) {
  const std::lock_guard lock(mutex_);
  const std::size_t size = in_pages(bytes);
  if (bytes == 0 || allocated_ + size > limit_) return std::nullopt;
  allocated_ += size;
  const Address at = take(size);
  return add({.kind = kind,
              .begin = at,
              .bytes = size,
              .pages = std::make_shared<Pages>(size),
              .device = device,
              .context = kind == Kind::kPool ? nullptr : context,
              .range_begin = at,
              .range_bytes = size});
}

std::optional<Piece> Memory::import(int file, std::size_t bytes, int device, void* context) {
  const std::lock_guard lock(mutex_);
  const Address at = take(bytes);
  return add({.kind = Kind::kImported,
              .begin = at,
              .bytes = bytes,
              .pages = std::make_shared<Pages>(file, bytes),
              .device = device,
              .context = context,
              .range_begin = at,
              .range_bytes = bytes});
}

void Memory::add_pinned(void* address, std::size_t bytes, void* context) {
  const std::lock_guard lock(mutex_);
  const auto begin = reinterpret_cast<Address>(address);
  pieces_[begin] = {.kind = Kind::kPinned,
                    .begin = begin,
                    .bytes = bytes,
                    .id = ++ids_,
                    .context = context,
                    .range_begin = begin,
                    .range_bytes = bytes};
}

bool Memory::release(Kind kind, Address address) {
  const std::lock_guard lock(mutex_);
  const auto found = pieces_.find(address);
  if (found == pieces_.end() || found->second.kind != kind) return false;
  if (kind != Kind::kPinned) {
    hide(address, found->second.bytes);
    taken_.erase(address);
    if (kind != Kind::kImported) allocated_ -= found->second.bytes;
  }
  pieces_.erase(found);
  return true;
}

// Makes pinned pages inaccessible, so that later accesses fault.
void Memory::end(const void* context) {
  std::vector<std::pair<Kind, Address>> ended;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [address, piece] : pieces_) {
      if (piece.context != context) continue;
      ended.emplace_back(piece.kind, address);
      if (piece.kind == Kind::kPinned) hide(address, piece.bytes);
    }
  }
  for (const auto& [kind, address] : ended) release(kind, address);
}

Address Memory::reserve(std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  return take(in_pages(bytes));
}

bool Memory::unreserve(Address address) {
  const std::lock_guard lock(mutex_);
  return taken_.erase(address) == 1;
}

bool Memory::map(Address address, std::shared_ptr<Pages> pages, std::size_t offset,
                 std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  auto range = taken_.upper_bound(address);
  if (range == taken_.begin()) return false;
  --range;
  if (address + bytes > range->first + range->second) return false;
  add({.kind = Kind::kMapped,
       .begin = address,
       .bytes = bytes,
       .pages = std::move(pages),
       .offset = offset,
       .accessible = false,
       .range_begin = range->first,
       .range_bytes = range->second});
  return true;
}

bool Memory::unmap(Address address, std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  const std::size_t gone = std::erase_if(pieces_, [&](const auto& entry) {
    const Piece& piece = entry.second;
    return piece.kind == Kind::kMapped && piece.begin >= address &&
           piece.begin + piece.bytes <= address + bytes;
  });
  if (gone > 0) hide(address, bytes);
  return gone > 0;
}

bool Memory::set_access(Address address, std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  bool any = false;
  for (auto& [begin, piece] : pieces_) {
    if (piece.kind != Kind::kMapped || begin < address || begin >= address + bytes) continue;
    any = piece.accessible = true;
  }
  return any;
}

std::map<Address, Piece>::const_iterator Memory::holding(Address address) const {
  auto found = pieces_.upper_bound(address);
  if (found == pieces_.begin()) return pieces_.end();
  --found;
  return address < found->first + found->second.bytes ? found : pieces_.end();
}

std::optional<Piece> Memory::find(Address address) const {
  const std::lock_guard lock(mutex_);
  const auto found = holding(address);
  return found != pieces_.end() ? std::optional(found->second) : std::nullopt;
}

// The part of [address, address + bytes) that lies in one piece.
std::optional<Memory::Part> Memory::part(Address address, std::size_t bytes) const {
  if (!is_ours(address)) return Part{reinterpret_cast<std::byte*>(address), bytes, nullptr};
  const std::lock_guard lock(mutex_);
  const auto found = holding(address);
  if (found == pieces_.end() || !found->second.accessible) return std::nullopt;
  const Piece& piece = found->second;
  const std::size_t inside = address - piece.begin;
  return Part{piece.pages->own() + piece.offset + inside, std::min(bytes, piece.bytes - inside),
              piece.pages};
}

bool Memory::copy(Address target, Address source, std::size_t bytes) const {
  while (bytes > 0) {
    const auto from = part(source, bytes), to = part(target, bytes);
    if (!from || !to) return false;
    const std::size_t size = std::min(from->bytes, to->bytes);
    std::memmove(to->at, from->at, size);
    target += size;
    source += size;
    bytes -= size;
  }
  return true;
}

std::byte* Memory::reachable(Address address, std::size_t bytes,
                             std::shared_ptr<void>& keep) const {
  const auto found = part(address, bytes);
  if (!found || found->bytes < bytes) return nullptr;
  keep = found->keep;
  return found->at;
}

std::size_t Memory::allocated() const {
  const std::lock_guard lock(mutex_);
  return allocated_;
}

}  // namespace simulated
