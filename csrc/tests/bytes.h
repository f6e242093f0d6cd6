// A byte buffer for tests that need many large blocks of a few sizes.
//
// Fresh pages take more time than the tests' own work, above all under a sanitizer. So each thread
// keeps large blocks and reuses them for requests of exactly the same size. The sanitizer still
// detects accesses beyond the end of a block, and accesses to a block that is not in use.
#pragma once

#include <cstddef>
#include <cstring>
#include <map>
#include <new>
#include <span>
#include <utility>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(address, bytes) (static_cast<void>(0))
#define ASAN_UNPOISON_MEMORY_REGION(address, bytes) (static_cast<void>(0))
#endif

namespace gradred::testing {

class KeptBlocks {
 public:
  ~KeptBlocks() { clear(); }

  std::byte* take(std::size_t bytes) {
    const auto found = bytes < kLeast ? free_.end() : free_.find(bytes);
    if (found == free_.end()) {
      return static_cast<std::byte*>(::operator new(bytes));
    }
    std::byte* const block = found->second;
    free_.erase(found);
    kept_ -= bytes;
    ASAN_UNPOISON_MEMORY_REGION(block, bytes);
    return block;
  }
  void give_back(std::byte* block, std::size_t bytes) {
    if (bytes < kLeast) return ::operator delete(block);
    if (kept_ + bytes > kMost) clear();
    free_.emplace(bytes, block);
    kept_ += bytes;
    ASAN_POISON_MEMORY_REGION(block, bytes);
  }

 private:
  static constexpr std::size_t kLeast = 32 << 10, kMost = 64 << 20;

  void clear() {
    for (const auto& [bytes, block] : free_) {
      ASAN_UNPOISON_MEMORY_REGION(block, bytes);
      ::operator delete(block);
    }
    free_.clear();
    kept_ = 0;
  }

  std::multimap<std::size_t, std::byte*> free_;
  std::size_t kept_ = 0;
};

// Replaces std::vector<std::byte>, as a vector is filled byte by byte in unoptimised builds.
class Bytes {
 public:
  explicit Bytes(std::size_t size = 0, std::byte value = {}) : Bytes(size, Unwritten()) {
    std::memset(data_, static_cast<int>(value), size_);
  }
  explicit Bytes(std::span<const std::byte> content) : Bytes(content.size(), Unwritten()) {
    std::memcpy(data_, content.data(), size_);
  }
  Bytes(const Bytes& other) : Bytes(std::span(other)) {}
  Bytes(Bytes&& other) noexcept : Bytes(0, Unwritten()) { swap(other); }
  Bytes& operator=(Bytes other) noexcept {
    swap(other);
    return *this;
  }
  ~Bytes() { blocks().give_back(data_, capacity()); }

  std::byte* data() { return data_; }
  const std::byte* data() const { return data_; }
  std::size_t size() const { return size_; }
  std::byte* begin() { return data_; }
  std::byte* end() { return data_ + size_; }
  const std::byte* begin() const { return data_; }
  const std::byte* end() const { return data_ + size_; }
  std::byte& operator[](std::size_t index) { return data_[index]; }
  bool operator==(const Bytes& other) const {
    return size_ == other.size_ && std::memcmp(data_, other.data_, size_) == 0;
  }

 private:
  struct Unwritten {};

  Bytes(std::size_t size, Unwritten) : size_(size), data_(blocks().take(capacity())) {}
  std::size_t capacity() const { return size_ == 0 ? 1 : size_; }  // an empty buffer has an address
  void swap(Bytes& other) noexcept {
    std::swap(size_, other.size_);
    std::swap(data_, other.data_);
  }
  static KeptBlocks& blocks() {
    thread_local KeptBlocks mine;
    return mine;
  }

  std::size_t size_;
  std::byte* data_;
};

inline bool alike(std::span<const std::byte> a, std::span<const std::byte> b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size()) == 0);
}

// Fills `data` with repetitions of its first bytes.
inline void repeat(std::span<std::byte> data, std::size_t first) {
  for (std::size_t made = first, more = 0; made < data.size(); made += more) {
    more = made < data.size() - made ? made : data.size() - made;
    std::memcpy(data.data() + made, data.data(), more);
  }
}

}  // namespace gradred::testing
