#include "liveness/status_page.h"

#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <mutex>

#include "base/bell.h"
#include "base/text.h"

namespace gradred {
namespace {

std::mutex page_mutex;  // orders the waits of several threads; the last one is shown
StatusPage* page = nullptr;
int file = -1;
LastBegun unread;

template <class Write>
void update(Write&& write_fields) {
  const std::lock_guard lock(page_mutex);
  if (page == nullptr) return;
  const std::atomic_ref<std::uint64_t> sequence(page->sequence);
  sequence.fetch_add(1, std::memory_order_acq_rel);
  write_fields();
  sequence.fetch_add(1, std::memory_order_acq_rel);
}

}  // namespace

constinit std::atomic<LastBegun*> last_begun{&unread};

bool read_wait(StatusPage& shown_page, ShownWait& shown) {
  const std::atomic_ref sequence(shown_page.sequence);
  for (int look = 0; look < 100; ++look) {
    const std::uint64_t before = sequence.load(std::memory_order_acquire);
    shown.since_ns = shown_page.since_ns;
    shown.wait = shown_page.wait;
    shown.waits_for.assign(shown_page.waits_for,
                           strnlen(shown_page.waits_for, sizeof shown_page.waits_for));
    std::atomic_thread_fence(std::memory_order_acquire);
    if (before % 2 == 0 && sequence.load(std::memory_order_relaxed) == before) return true;
    sched_yield();
  }
  return false;
}

StatusPage* map_status_file(int descriptor, bool writable) {
  const int access = PROT_READ | (writable ? PROT_WRITE : 0);
  void* memory =
      mmap(nullptr, StatusPage::kOffset + sizeof(StatusPage), access, MAP_SHARED, descriptor, 0);
  if (memory == MAP_FAILED) return nullptr;
  return reinterpret_cast<StatusPage*>(static_cast<std::byte*>(memory) + StatusPage::kOffset);
}

bool use_status_file(int descriptor) {
  StatusPage* mapped = map_status_file(descriptor, true);
  if (mapped == nullptr) return false;
  const std::lock_guard lock(page_mutex);
  page = mapped;
  last_begun.store(&mapped->last, std::memory_order_relaxed);
  Sleep::count_lost_at(mapped->lost_wake_ups);
  file = descriptor;
  return true;
}

int status_file() {
  const std::lock_guard lock(page_mutex);
  return file;
}

std::uint64_t name_of_file(const std::string& link) {
  char name[64];
  const auto length = readlink(link.c_str(), name, sizeof name);
  if (length <= 0) return 0;
  return mix(0, std::string_view(name, static_cast<std::size_t>(length))) | 1;
}

void post_wait(std::uint64_t since_ns, const WaitRecord& wait, std::string_view waits_for) {
  update([&] {
    page->since_ns = since_ns;
    page->wait = wait;
    set_text(page->waits_for, waits_for);
  });
}

void clear_wait() {
  update([] { page->since_ns = 0; });
}

void post_shutdown_record(Leaving leaving, const ShutdownRecord& shutdown_record) {
  const std::lock_guard lock(page_mutex);
  if (page == nullptr) return;
  page->shutdown_record.known = shutdown_record.known;
  page->shutdown_record.at_ns = shutdown_record.at_ns;
  std::memcpy(page->shutdown_record.begun, shutdown_record.begun, sizeof shutdown_record.begun);
  std::memcpy(page->shutdown_record.reason, shutdown_record.reason, sizeof shutdown_record.reason);
  std::atomic_ref(page->shutdown_record.leaving)
      .store(static_cast<std::uint32_t>(leaving), std::memory_order_release);
}

void post_leaving(Leaving leaving) {
  const std::lock_guard lock(page_mutex);
  if (page == nullptr) return;
  std::atomic_ref(page->shutdown_record.leaving)
      .store(static_cast<std::uint32_t>(leaving), std::memory_order_release);
}

void post_end_of_main_thread() {
  const std::lock_guard lock(page_mutex);
  if (page == nullptr) return;
  std::atomic_ref(page->main_thread_has_ended).store(1, std::memory_order_release);
}

}  // namespace gradred
