#include "node/memory/array_memory.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <limits>
#include <map>
#include <mutex>
#include <new>

#include "base/errors.h"
#include "node/memory/memory_file.h"

namespace gradred {
namespace {

// File descriptors are scarce: arrays smaller than kOwnSlab share slabs of kSlab bytes.
constexpr std::size_t kOwnSlab = std::size_t{8} << 20, kSlab = std::size_t{32} << 20;

std::size_t whole_pages(std::size_t bytes) {
  static const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  return (bytes + page - 1) / page * page;
}

}  // namespace

// One file, mapped as a whole. It is filled from the beginning to the end. Memory freed within it
// returns to the system at once.
class Slab {
 public:
  explicit Slab(std::size_t bytes);
  ~Slab();
  Slab(const Slab&) = delete;
  Slab& operator=(const Slab&) = delete;

  bool has_room(std::size_t bytes) const { return start_of(bytes) + bytes <= bytes_; }
  std::byte* take(std::size_t bytes);  // reserves addresses only
  void populate(std::byte* data, std::size_t bytes) const;
  void give_back(std::byte* data, std::size_t bytes) noexcept;
  void become_private() noexcept;  // in a forked child
  // Called in the parent of a fork, since the child may still read the present content.
  void keep_all() noexcept { keeps_all_ = true; }
  bool holds(const std::byte* data, std::size_t bytes) const {
    return data >= data_ && data + bytes <= data_ + bytes_;
  }
  FilePart part(const std::byte* data) const;

 private:
  // Where the next array starts. Arrays of at least a huge page are aligned to huge pages.
  std::size_t start_of(std::size_t bytes) const {
    return bytes < kHugePage ? used_ : (used_ + kHugePage - 1) / kHugePage * kHugePage;
  }
  FileNote& note() const { return *reinterpret_cast<FileNote*>(data_ + bytes_); }

  const File file_;
  const std::size_t bytes_;  // bytes for arrays; the note follows them
  std::byte* data_ = nullptr;
  std::size_t used_ = 0;
  bool keeps_all_ = false;
  bool is_private_ = false;  // in a forked child: the file's content is not this process's
  bool writable_ = true;
};

namespace {

struct Slabs {
  std::mutex mutex;
  std::map<const std::byte*, Slab*> all;  // by first address
  std::atomic<std::size_t> count = 0;     // size of `all`, readable without the mutex
  std::uint32_t last = 0;                 // number of the last file
  std::weak_ptr<Slab> shared;             // the slab that small arrays share
};

Slabs& slabs() {
  static auto* slabs = new Slabs;  // arrays may outlive static destructors
  return *slabs;
}

void after_fork(void (Slab::*what)() noexcept) {
  for (const auto& [begin, slab] : slabs().all) (slab->*what)();
  slabs().shared.reset();
  slabs().mutex.unlock();
}

void watch_forks() {
  static std::once_flag once;
  std::call_once(once, [] {
    pthread_atfork([] { slabs().mutex.lock(); }, [] { after_fork(&Slab::keep_all); },
                   [] { after_fork(&Slab::become_private); });
  });
}

std::size_t memory_of_machine() {
  return static_cast<std::size_t>(sysconf(_SC_PHYS_PAGES)) *
         static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
}

}  // namespace

Slab::Slab(std::size_t bytes) : file_(open_anonymous("gradred-arrays")), bytes_(bytes) {
  if (!file_) throw TransportError(last_error("cannot create shared memory"));
  if (ftruncate(file_.fd(), static_cast<off_t>(bytes + kFileNoteBytes)) != 0) {
    throw TransportError(last_error("cannot set the size of shared memory"));
  }
  data_ = map_shared(file_.fd(), bytes + kFileNoteBytes);
  try {
    allocate(file_, data_ + bytes, bytes, sizeof(FileNote));
  } catch (...) {
    munmap(data_, bytes + kFileNoteBytes);
    throw;
  }
  new (data_ + bytes) FileNote{++slabs().last, data_, bytes, 0};
  slabs().all.emplace(data_, this);
  ++slabs().count;
}

// Peers may keep the file open as long as they like, so its memory is returned to the system now.
Slab::~Slab() {
  {
    const std::lock_guard lock(slabs().mutex);
    slabs().all.erase(data_);
    --slabs().count;
  }
  if (writable_) note().ended.store(1, std::memory_order_relaxed);
  if (used_ > 0) give_back(data_, used_);
  munmap(data_, bytes_ + kFileNoteBytes);
}

// A descriptor number above 16 bits does not fit into an announcement.
FilePart Slab::part(const std::byte* data) const {
  if (is_private_ || file_.fd() > std::numeric_limits<std::uint16_t>::max()) return {};
  const FilePlace place{static_cast<std::uint16_t>(file_.fd()),
                        static_cast<std::uint32_t>(note().serial)};
  return {place, static_cast<std::size_t>(data - data_), bytes_};
}

std::byte* Slab::take(std::size_t bytes) {
  const std::size_t start = start_of(bytes);
  used_ = start + bytes;
  return data_ + start;
}

void Slab::populate(std::byte* data, std::size_t bytes) const {
  allocate(file_, data, static_cast<std::size_t>(data - data_), bytes);
}

void Slab::give_back(std::byte* data, std::size_t bytes) noexcept {
  if (keeps_all_) return;
  const auto offset = static_cast<off_t>(data - data_);
  // If this fails, the memory is freed with the slab.
  [[maybe_unused]] const int failed = fallocate(
      file_.fd(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, offset, static_cast<off_t>(bytes));
}

void Slab::become_private() noexcept {
  keeps_all_ = is_private_ = true;
  const int flags = MAP_PRIVATE | MAP_FIXED | MAP_NORESERVE;
  const std::size_t all = bytes_ + kFileNoteBytes;
  if (mmap(data_, all, PROT_READ | PROT_WRITE, flags, file_.fd(), 0) == MAP_FAILED) {
    // Now a write crashes the child, instead of changing the parent's data.
    mprotect(data_, all, PROT_READ);
    writable_ = false;
  }
}

ArrayMemory::ArrayMemory(std::size_t bytes) : bytes_(bytes) {
  if (const std::size_t all = memory_of_machine(); bytes > all) {  // checked before it is filled
    throw TransportError("the machine has " + std::to_string(all) + " bytes of memory");
  }
  watch_forks();
  const std::size_t whole = whole_pages(std::max<std::size_t>(bytes, 1));
  const bool own = whole >= kOwnSlab;
  std::shared_ptr<Slab> full;  // destroyed after the mutex is released
  {
    const std::lock_guard lock(slabs().mutex);
    std::shared_ptr<Slab> slab = own ? nullptr : slabs().shared.lock();
    if (slab && !slab->has_room(whole)) full = std::move(slab);
    if (!slab) slab = std::make_shared<Slab>(own ? whole : kSlab);
    if (!own) slabs().shared = slab;
    data_ = slab->take(whole);
    slab_ = std::move(slab);
  }
  try {
    slab_->populate(data_, whole);  // may take seconds; forks and other arrays need not wait
  } catch (...) {
    release();
    throw;
  }
}

ArrayMemory::~ArrayMemory() { release(); }

// The last array of a file frees it outside the mutex, since freeing much memory takes time.
void ArrayMemory::release() noexcept {
  {
    const std::lock_guard lock(slabs().mutex);
    if (slab_.use_count() > 1) slab_->give_back(data_, whole_pages(bytes_));
  }
  slab_.reset();
}

FilePart file_part(const void* data, std::size_t bytes) {
  const auto* const begin = static_cast<const std::byte*>(data);
  if (slabs().count.load(std::memory_order_relaxed) == 0) return {};
  const std::lock_guard lock(slabs().mutex);
  auto found = slabs().all.upper_bound(begin);
  if (found == slabs().all.begin()) return {};
  --found;
  return found->second->holds(begin, bytes) ? found->second->part(begin) : FilePart{};
}

FilePlace file_place(const void* data, std::size_t bytes) { return file_part(data, bytes).place; }

}  // namespace gradred
