// The simulated driver's memory. The host must not access its addresses. The driver itself accesses
// the same pages at other addresses.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>

namespace simulated {

using Address = std::uint64_t;

// Pages of a file that processes can share, mapped where the driver accesses them.
class Pages {
 public:
  explicit Pages(std::size_t bytes);   // filled with garbage
  Pages(int file, std::size_t bytes);  // pages of another process
  ~Pages();
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;

  int file() const { return file_; }
  std::size_t bytes() const { return bytes_; }
  std::byte* own() const { return own_; }

 private:
  int file_;
  std::size_t bytes_;
  std::byte* own_;
};

enum class Kind { kAllocated, kPool, kManaged, kMapped, kImported, kPinned };

// A range of addresses with pages.
struct Piece {
  Kind kind;
  Address begin;
  std::size_t bytes;
  std::shared_ptr<Pages> pages{};
  std::size_t offset = 0;  // in `pages`
  std::uint64_t id = 0;    // unique
  int device = 0;
  void* context = nullptr;
  bool accessible = true;   // false: a mapped chunk before cuMemSetAccess
  Address range_begin = 0;  // reserved range that contains a mapped chunk
  std::size_t range_bytes = 0;
};

class Memory {
 public:
  static constexpr std::size_t kPage = 4096;
  static std::size_t in_pages(std::size_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

  Memory();

  void limit_to(std::size_t bytes) { limit_ = bytes; }
  // Simulates a faulty driver: all memory allocated afterwards has the same buffer id.

  // Returns nullopt if the device has no memory left. Uses the lowest free addresses, so that freed
  // addresses are soon used again.
  std::optional<Piece> allocate(Kind kind, std::size_t bytes, int device, void* context);
  std::optional<Piece> import(int file, std::size_t bytes, int device, void* context);
  void add_pinned(void* address, std::size_t bytes, void* context);
  // Returns false if no piece of this kind begins there.
  bool release(Kind kind, Address address);
  void end(const void* context);  // frees all memory allocated in the context

  // Address ranges without memory, and chunks of memory to map there.
  Address reserve(std::size_t bytes);
  bool unreserve(Address address);
  bool map(Address address, std::shared_ptr<Pages> pages, std::size_t offset, std::size_t bytes);
  bool unmap(Address address, std::size_t bytes);
  bool set_access(Address address, std::size_t bytes);

  std::optional<Piece> find(Address address) const;
  // Copies between memory of any kinds. Returns false if a part is not memory or not accessible.
  bool copy(Address target, Address source, std::size_t bytes) const;
  // The driver's address for the bytes, valid as long as `keep` lives. Returns nullptr unless all
  // bytes are in one accessible piece.
  std::byte* reachable(Address address, std::size_t bytes, std::shared_ptr<void>& keep) const;
  std::size_t allocated() const;

 private:
  struct Part {
    std::byte* at;
    std::size_t bytes;
    std::shared_ptr<Pages> keep;
  };
  bool is_ours(Address address) const { return address >= begin_ && address < begin_ + kRegion; }
  std::optional<Part> part(Address address, std::size_t bytes) const;
  Address take(std::size_t bytes);
  void show(const Piece& piece) const;
  void hide(Address address, std::size_t bytes) const;
  std::optional<Piece> add(Piece piece);
  std::map<Address, Piece>::const_iterator holding(Address address) const;

  static constexpr std::size_t kRegion = std::size_t{64} << 30;
  const Address begin_;
  std::size_t limit_ = std::size_t{1} << 30;
  mutable std::mutex mutex_;
  std::map<Address, Piece> pieces_;
  std::map<Address, std::size_t> taken_;  // addresses in use: allocations and reservations
  std::size_t allocated_ = 0;
  std::uint64_t ids_ = 0;
};

}  // namespace simulated
