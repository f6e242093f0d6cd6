#include "base/status.h"

#include <atomic>
#include <mutex>

#include "base/text.h"

namespace gradred {
namespace {

std::mutex mutex;  // of the waits of several threads, of which the last is shown
StatusPage* page = nullptr;

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

void use_status_page(StatusPage* made) {
  const std::lock_guard lock(mutex);
  page = made;
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

}  // namespace gradred
