// The simulated driver's memory: addresses at which the host may touch nothing, with pages behind
// them that the driver itself sees at other addresses.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>

namespace simulated {

using Address = std::uint64_t;

// Pages of a file, which processes can share, mapped where the driver reads and writes them.
class Pages {
 public:
  explicit Pages(std::size_t bytes);   // full of garbage
  Pages(int file, std::size_t bytes);  // another process's
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

// A range of addresses with pages behind it.
struct Piece {
  Kind kind;
  Address begin;
  std::size_t bytes;
  std::shared_ptr<Pages> pages{};
  std::size_t offset = 0;  // in them
  std::uint64_t id = 0;    // given to no other piece
  int device = 0;
  void* context = nullptr;
  bool accessible = true;   // a mapped chunk is not, until somebody has said so
  Address range_begin = 0;  // what was reserved, of which a mapped chunk is a part
  std::size_t range_bytes = 0;
};

class Memory {
 public:
  static constexpr std::size_t kPage = 4096;
  static std::size_t in_pages(std::size_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

  Memory();

  void limit_to(std::size_t bytes) { limit_ = bytes; }
  // A driver that is wrong: all that is allocated from now on has one buffer id.
  void give_one_id(bool on) { gives_one_id_ = on; }

  // nullopt: the device has no memory left. The lowest free addresses are taken, so that what is
  // freed is soon used again.
  std::optional<Piece> allocate(Kind kind, std::size_t bytes, int device, void* context);
  std::optional<Piece> import(int file, std::size_t bytes, int device, void* context);
  void add_pinned(void* address, std::size_t bytes, void* context);
  // False: no piece of this kind begins there.
  bool release(Kind kind, Address address);
  void end(const void* context);  // with all that was allocated in it

  // Addresses without memory, and chunks of memory to be mapped there.
  Address reserve(std::size_t bytes);
  bool unreserve(Address address);
  bool map(Address address, std::shared_ptr<Pages> pages, std::size_t offset, std::size_t bytes);
  bool unmap(Address address, std::size_t bytes);
  bool set_access(Address address, std::size_t bytes);

  std::optional<Piece> find(Address address) const;
  // Whatever kinds both are of. False: something there is no memory, or not accessible.
  bool copy(Address target, Address source, std::size_t bytes) const;
  // Where the driver finds the bytes as long as `keep` lives; null: they are not all of one piece
  // that is accessible.
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
  std::map<Address, std::size_t> taken_;  // of the region: allocations and reservations
  std::size_t allocated_ = 0;
  std::uint64_t ids_ = 0;
  bool gives_one_id_ = false;
};

}  // namespace simulated
