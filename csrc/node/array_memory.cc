#include "node/array_memory.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>

#include <algorithm>
#include <mutex>
#include <set>

#include "base/errors.h"
#include "node/memory_file.h"

namespace gradred {
namespace {

// Descriptors are few: arrays smaller than this share a slab of that size.
constexpr std::size_t kOwnSlab = std::size_t{8} << 20, kSlab = std::size_t{32} << 20;

std::size_t whole_pages(std::size_t bytes) {
  static const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  return (bytes + page - 1) / page * page;
}

}  // namespace

// One file, mapped whole. It is filled from the beginning to the end, and what is freed within it
// goes back to the system at once.
class Slab {
 public:
  explicit Slab(std::size_t bytes);
  ~Slab();
  Slab(const Slab&) = delete;
  Slab& operator=(const Slab&) = delete;

  std::size_t room() const { return bytes_ - used_; }
  std::byte* take(std::size_t bytes);  // addresses only
  void populate(std::byte* data, std::size_t bytes) const;
  void give_back(std::byte* data, std::size_t bytes) noexcept;
  void become_private() noexcept;  // in a forked child
  // A child may still read what is there now.
  void keep_all() noexcept { keeps_all_ = true; }

 private:
  const File file_;
  const std::size_t bytes_;
  std::byte* data_ = nullptr;
  std::size_t used_ = 0;
  bool keeps_all_ = false;
};

namespace {

struct Slabs {
  std::mutex mutex;
  std::set<Slab*> all;
  std::weak_ptr<Slab> shared;  // by small arrays
};

Slabs& slabs() {
  static auto* slabs = new Slabs;  // arrays may outlive static destructors
  return *slabs;
}

void after_fork(void (Slab::*what)() noexcept) {
  for (Slab* slab : slabs().all) (slab->*what)();
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

}  // namespace

Slab::Slab(std::size_t bytes) : file_(open_anonymous("gradred-arrays")), bytes_(bytes) {
  if (!file_) throw TransportError(last_error("cannot create shared memory"));
  if (ftruncate(file_.fd(), static_cast<off_t>(bytes)) != 0) {
    throw TransportError(last_error("cannot set the size of shared memory"));
  }
  data_ = map_shared(file_.fd(), bytes);
  slabs().all.insert(this);
}

Slab::~Slab() {
  slabs().all.erase(this);
  munmap(data_, bytes_);
}

std::byte* Slab::take(std::size_t bytes) {
  std::byte* const data = data_ + used_;
  used_ += bytes;
  return data;
}

void Slab::populate(std::byte* data, std::size_t bytes) const {
  allocate(file_, data, static_cast<std::size_t>(data - data_), bytes);
}

void Slab::give_back(std::byte* data, std::size_t bytes) noexcept {
  if (keeps_all_) return;
  const auto offset = static_cast<off_t>(data - data_);
  // Where this fails the memory goes with the slab.
  [[maybe_unused]] const int failed = fallocate(
      file_.fd(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, offset, static_cast<off_t>(bytes));
}

void Slab::become_private() noexcept {
  keeps_all_ = true;
  const int flags = MAP_PRIVATE | MAP_FIXED | MAP_NORESERVE;
  if (mmap(data_, bytes_, PROT_READ | PROT_WRITE, flags, file_.fd(), 0) == MAP_FAILED) {
    mprotect(data_, bytes_, PROT_READ);  // a crash of the child, rather than changes in the parent
  }
}

ArrayMemory::ArrayMemory(std::size_t bytes) : bytes_(bytes) {
  watch_forks();
  const std::size_t whole = whole_pages(std::max<std::size_t>(bytes, 1));
  const bool own = whole >= kOwnSlab;
  {
    const std::lock_guard lock(slabs().mutex);
    std::shared_ptr<Slab> slab = own ? nullptr : slabs().shared.lock();
    if (!slab || slab->room() < whole) slab = std::make_shared<Slab>(own ? whole : kSlab);
    if (!own) slabs().shared = slab;
    data_ = slab->take(whole);
    slab_ = std::move(slab);
  }
  try {
    slab_->populate(data_, whole);  // seconds for many GiB: forks and other arrays do not wait
  } catch (...) {
    release();
    throw;
  }
}

ArrayMemory::~ArrayMemory() { release(); }

void ArrayMemory::release() noexcept {
  const std::lock_guard lock(slabs().mutex);
  if (slab_.use_count() > 1) slab_->give_back(data_, whole_pages(bytes_));
  slab_.reset();
}

}  // namespace gradred
