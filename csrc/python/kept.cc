#include "python/kept.h"

#include <deque>
#include <utility>

namespace gradred {
namespace {

using Kept = std::pair<std::shared_ptr<StartedOperation>, PyObject*>;

std::deque<Kept>& kept() {
  static auto* const all = new std::deque<Kept>;
  return *all;
}

}  // namespace

void keep_until_ended(std::shared_ptr<StartedOperation> operation, PyObject* held) {
  kept().emplace_back(std::move(operation), held);
}

// With two, all ended operations are released before as many others have been started, whatever
// their number.
void let_ended_go() {
  constexpr int kPassedOver = 2;
  for (int passed_over = 0; passed_over < kPassedOver && !kept().empty();) {
    auto [operation, held] = std::move(kept().front());
    kept().pop_front();
    if (operation->ended() && !operation->holds_memory()) {
      Py_DECREF(held);
    } else {
      kept().emplace_back(std::move(operation), held);
      ++passed_over;
    }
  }
}

}  // namespace gradred
