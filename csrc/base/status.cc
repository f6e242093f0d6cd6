#include "base/status.h"

#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <mutex>

#include "base/errors.h"
#include "base/text.h"

namespace gradred {
namespace {

std::mutex mutex;  // of the waits of several threads, of which the last is shown
StatusPage* page = nullptr;
int file = -1;
LastBegun unread;

template <class Write>
void write(Write&& write_fields) {
  const std::lock_guard lock(mutex);
  if (page == nullptr) return;
  const std::atomic_ref<std::uint64_t> sequence(page->sequence);
  sequence.fetch_add(1, std::memory_order_acq_rel);
  write_fields();
  sequence.fetch_add(1, std::memory_order_acq_rel);
}

}  // namespace

constinit std::atomic<LastBegun*> last_begun{&unread};

StatusPage* map_status_file(int descriptor, bool writable) {
  const int access = PROT_READ | (writable ? PROT_WRITE : 0);
  void* memory =
      mmap(nullptr, StatusPage::kOffset + sizeof(StatusPage), access, MAP_SHARED, descriptor, 0);
  if (memory == MAP_FAILED) return nullptr;
  return reinterpret_cast<StatusPage*>(static_cast<std::byte*>(memory) + StatusPage::kOffset);
}

void use_status_file(int descriptor) {
  StatusPage* mapped = map_status_file(descriptor, true);
  if (mapped == nullptr) throw TransportError("the status file of this process cannot be mapped");
  const std::lock_guard lock(mutex);
  page = mapped;
  last_begun.store(&mapped->last, std::memory_order_relaxed);
  file = descriptor;
}

int status_file() {
  const std::lock_guard lock(mutex);
  return file;
}

std::uint64_t name_of_file(const std::string& link) {
  char name[64];
  const auto length = readlink(link.c_str(), name, sizeof name);
  if (length <= 0) return 0;
  return mix(0, std::string_view(name, static_cast<std::size_t>(length))) | 1;
}

void post_status(std::uint64_t since_ns, std::string_view text) {
  write([&] {
    page->since_ns = since_ns;
    set_text(page->text, text);
  });
}

void clear_status() {
  write([] { page->since_ns = 0; });
}

void post_farewell(Leaving leaving, const Farewell& farewell) {
  const std::lock_guard lock(mutex);
  if (page == nullptr) return;
  page->farewell.known = farewell.known;
  page->farewell.at_ns = farewell.at_ns;
  std::memcpy(page->farewell.begun, farewell.begun, sizeof farewell.begun);
  std::memcpy(page->farewell.reason, farewell.reason, sizeof farewell.reason);
  std::atomic_ref(page->farewell.leaving)
      .store(static_cast<std::uint32_t>(leaving), std::memory_order_release);
}

void post_leaving(Leaving leaving) {
  const std::lock_guard lock(mutex);
  if (page == nullptr) return;
  std::atomic_ref(page->farewell.leaving)
      .store(static_cast<std::uint32_t>(leaving), std::memory_order_release);
}

}  // namespace gradred
