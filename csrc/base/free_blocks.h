// A free list for small objects that are created and destroyed by the hundred.
#pragma once

#include <cstddef>
#include <new>

#if defined(__SANITIZE_ADDRESS__)
#define GRADRED_ADDRESS_SANITIZER
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define GRADRED_ADDRESS_SANITIZER
#endif
#endif

namespace gradred {

// Blocks of this size that the thread has freed and will reuse. The general allocator caches seven
// blocks of a size. It merges further ones with their neighbours and has to split them again later.
template <std::size_t kBytes>
class FreeBlocks {
 public:
  static void* take() {
    List& mine = list();
    if (mine.first == nullptr) return ::operator new(kBytes);
    --mine.count;
    Block* const taken = mine.first;
    mine.first = taken->next;
    return taken;
  }
  static void give_back(void* memory) {
    List& mine = list();
    if (mine.count == mine.most && !begin(mine)) return ::operator delete(memory);
    ++mine.count;
    mine.first = new (memory) Block{mine.first};
  }

 private:
  struct Block {
    Block* next;
  };
  static_assert(kBytes >= sizeof(Block));
  // It has no destructor, which each access would have to register.
  struct List {
    Block* first = nullptr;
    std::size_t count = 0;
    std::size_t most = 0;  // 0: before the first block and at the end of the thread
    bool is_over = false;
  };
  struct End {
    ~End() {
      List& mine = list();
      mine.most = 0;
      mine.is_over = true;
      while (mine.first != nullptr) ::operator delete(take());
    }
  };
#if defined(GRADRED_ADDRESS_SANITIZER)
  static constexpr std::size_t kMost = 0;  // so that the sanitizer sees use after free
#else
  static constexpr std::size_t kMost = 512;  // most of a program's gradients in flight
#endif

  static List& list() {
    static constinit thread_local List mine;
    return mine;
  }
  // Lets the list keep blocks if the thread has just begun. Returns false if it is full or over.
  [[gnu::noinline]] static bool begin(List& mine) {
    if (mine.most != 0 || mine.is_over) return false;
    static thread_local End end;
    static_cast<void>(&end);
    mine.most = kMost;
    return mine.most != 0;
  }
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
    return static_cast<T*>(count == 1 ? FreeBlocks<sizeof(T)>::take()
                                      : ::operator new(count * sizeof(T)));
  }
  void deallocate(T* memory, std::size_t count) {
    count == 1 ? FreeBlocks<sizeof(T)>::give_back(memory) : ::operator delete(memory);
  }
  template <class Other>
  bool operator==(const PoolAllocator<Other>&) const {
    return true;
  }

 private:
  static_assert(alignof(T) <= __STDCPP_DEFAULT_NEW_ALIGNMENT__);
};

}  // namespace gradred
