// A free list for small objects that are created and destroyed by the hundred.
#pragma once

#include <cstddef>
#include <new>

namespace gradred {

// Blocks of this size that the thread has freed and will reuse. The general allocator caches seven
// blocks of a size. It merges further ones with their neighbours and has to split them again later.
template <std::size_t kBytes>
class FreeBlocks {
 public:
  FreeBlocks() = default;
  FreeBlocks(const FreeBlocks&) = delete;
  FreeBlocks& operator=(const FreeBlocks&) = delete;
  ~FreeBlocks() {
    is_over = true;
    while (first_ != nullptr) ::operator delete(take());
  }
  // Set when the thread ends and its list is gone.
  static inline thread_local bool is_over = false;

  void* take() {
    if (first_ == nullptr) return ::operator new(kBytes);
    --count_;
    Block* const taken = first_;
    first_ = taken->next;
    return taken;
  }
  void give_back(void* memory) {
    if (count_ == kMost) return ::operator delete(memory);
    ++count_;
    first_ = new (memory) Block{first_};
  }

 private:
  struct Block {
    Block* next;
  };
  static_assert(kBytes >= sizeof(Block));
#if defined(__SANITIZE_ADDRESS__)
  static constexpr std::size_t kMost = 0;  // so that the sanitizer sees use after free
#else
  static constexpr std::size_t kMost = 512;  // most of a program's gradients in flight
#endif

  Block* first_ = nullptr;
  std::size_t count_ = 0;
};

// An allocator for containers and std::allocate_shared.
template <class T>
class PoolAllocator {
 public:
  using value_type = T;

  PoolAllocator() = default;
  template <class Other>
  PoolAllocator(const PoolAllocator<Other>&) {}  // NOLINT: containers convert it

  T* allocate(std::size_t count) {
    const bool pooled = count == 1 && !FreeBlocks<sizeof(T)>::is_over;
    return static_cast<T*>(pooled ? blocks().take() : ::operator new(count * sizeof(T)));
  }
  void deallocate(T* memory, std::size_t count) {
    const bool pooled = count == 1 && !FreeBlocks<sizeof(T)>::is_over;
    pooled ? blocks().give_back(memory) : ::operator delete(memory);
  }
  template <class Other>
  bool operator==(const PoolAllocator<Other>&) const {
    return true;
  }

 private:
  static_assert(alignof(T) <= __STDCPP_DEFAULT_NEW_ALIGNMENT__);
  static FreeBlocks<sizeof(T)>& blocks() {
    thread_local FreeBlocks<sizeof(T)> mine;
    return mine;
  }
};

}  // namespace gradred
